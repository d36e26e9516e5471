"""What a curious agent learns of its neighbours where masks leave it sums alone."""

from dataclasses import dataclass

from sottovoce.mechanisms import parse_algorithm
from sottovoce.privacy.adversaries import CuriousAgents
from sottovoce.privacy.attacks import Attack, LongRange
from sottovoce.privacy.auditor import Audit, AuditSettings, audit
from sottovoce.stepsizes import parse_stepsize
from sottovoce.storage.execution import Execution
from sottovoce.studies.images import Images
from sottovoce.studies.settings import OnGraph


@dataclass(frozen=True, kw_only=True)
class MaskedSums(Images, OnGraph):
    """A training on masked links, and how many runs of it agent 0 listens to.

    candidates: among how many images those of the neighbours are looked for.
    """

    algorithm: str = "dsgd"
    stepsize: str = "experiment:0.1/k"
    runs: int = 8
    round: int = 50
    candidates: int = 5000
    attacks: tuple[Attack, ...] = (LongRange(),)


def neighbours_from_sums(
    settings: MaskedSums | None = None, execution: Execution | None = None
) -> Audit:
    """Rank the neighbours' images by the sums that agent 0 receives, one image a batch.

    `Audit.lined` has the ranks of each attack: 1 is the likeliest of all candidates. Neighbours
    whose steps reach agent 0 by the same factors cannot be told apart: on a ring ranks 1 and 2 are
    both full success.
    """
    settings = settings or MaskedSums()
    graph = settings.network()
    neighbours = graph.neighbours(0)
    problem, inputs = settings.problem(graph.agents)
    questions = AuditSettings(
        stepsize=parse_stepsize(settings.stepsize),
        adversaries=[CuriousAgents({0}, links="masked")],
        attacks=settings.attacks,
        readers=[],
        rounds=[settings.round],
        targets=settings.runs * len(neighbours),
        agents=neighbours,
        candidates=settings.candidates,
        pairs=0,
        insecure_seed=settings.insecure_seed,
    )
    return audit(problem, parse_algorithm(settings.algorithm), graph, inputs, questions, execution)
