"""What the paper's attacker recovers under gradient noise: the last line of its Table I."""

from collections.abc import Sequence

from sottovoce.graphs import Graph, ring
from sottovoce.mechanisms import NoisyDSGD
from sottovoce.privacy.attacks import LeastSquares
from sottovoce.privacy.auditor import audit
from sottovoce.privacy.auditor.scores import Effort, Row
from sottovoce.privacy.readers import Search
from sottovoce.stepsizes import Power, Stepsize
from sottovoce.studies.leakage import image_problem

PAPER_DLG_ERRORS = {0.0: 3.030e-7, 1e-4: 0.1012, 1e-3: 16.39, 1e-2: 58.48, 1e-1: 340.3, 1.0: 1221.0}
"""Table I of the paper: noise -> final DLG error."""


def noise_attack(
    levels: Sequence[float],
    *,
    model: str = "small",
    graph: Graph | None = None,
    targets: int = 8,
    round: int = 10,
    search: Search | None = None,
    data: str = "subset",
    data_dir: str | None = None,
    device: str = "cpu",
    insecure_seed: int | None = None,
) -> dict[float, Row]:
    """`dlg` on NoisyDSGD at every noise level, one image a batch.

    The coefficients 1/|N_j| are public, so that `least-squares` gives an eavesdropper g + ξ
    exactly; noise is then the only protection.
    """
    graph = graph or ring(5)
    problem, inputs = image_problem(
        model, agents=graph.agents, data=data, data_dir=data_dir, device=device
    )
    effort = Effort(search or Search(), ("dlg",), controls=False, confined=model == "paper")
    found = {}
    for level in levels:
        rows = audit(
            problem,
            NoisyDSGD(level),
            graph,
            inputs,
            stepsize=Stepsize(Power(0.05)),
            rounds=(round,),
            targets=targets,
            attacks=[LeastSquares()],
            effort=effort,
            insecure_seed=insecure_seed,
        ).rows
        found[level] = rows[0]
    return found
