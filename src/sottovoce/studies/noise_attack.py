"""What the paper's attacker recovers under gradient noise: the last line of its Table I."""

from collections.abc import Sequence

from sottovoce.graphs import Graph
from sottovoce.mechanisms import NoisyDSGD
from sottovoce.privacy.attacks import LeastSquares
from sottovoce.privacy.auditor import AuditSettings, Row, audit
from sottovoce.privacy.readers import Dlg
from sottovoce.stepsizes import Power, Stepsize
from sottovoce.storage.execution import Execution
from sottovoce.studies.images import Images

PAPER_DLG_ERRORS = {0.0: 3.030e-7, 1e-4: 0.1012, 1e-3: 16.39, 1e-2: 58.48, 1e-1: 340.3, 1.0: 1221.0}
"""Table I of the paper: noise -> final DLG error."""


def recovered_under_noise(
    levels: Sequence[float],
    images: Images,
    graph: Graph,
    targets: int,
    insecure_seed: int | None = None,
    execution: Execution | None = None,
) -> dict[float, Row]:
    """`dlg` on round 10 of NoisyDSGD at every noise level, one image a batch.

    The coefficients 1/|N_j| are public, so that `least-squares` gives an eavesdropper g + ξ
    exactly; noise is then the only protection.
    """
    problem, inputs = images.problem(graph.agents)
    settings = AuditSettings(
        stepsize=Stepsize(Power(0.05)),
        attacks=[LeastSquares()],
        readers=[Dlg(confined=images.model == "paper")],
        rounds=(10,),
        targets=targets,
        controls=False,
        insecure_seed=insecure_seed,
    )
    return {
        level: audit(problem, NoisyDSGD(level), graph, inputs, settings, execution).rows[0]
        for level in levels
    }
