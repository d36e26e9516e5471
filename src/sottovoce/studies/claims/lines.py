"""What is compared: the lines of the table of claims, and the trainings that they are put into."""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property

from torch import Tensor

from sottovoce.errors import SottovoceError
from sottovoce.graphs import Graph
from sottovoce.mechanisms import CLAIMS, Claim, Mechanism, Muffliato, as_mechanism
from sottovoce.privacy.composition import multiplier_for
from sottovoce.privacy.guarantee import ProofSettings
from sottovoce.privacy.knowledge import Inputs
from sottovoce.privacy.planning import FAMILIES, Target, meet
from sottovoce.problems import ModuleProblem
from sottovoce.stepsizes import LAWS, Power, Stepsize
from sottovoce.studies.claims.settings import DATA, FULL, ClaimsSettings, Sizes
from sottovoce.studies.images import Images
from sottovoce.studies.training import Training

_CLIP = 1.0
_SCALES = {
    False: {"census": 3.0, "text": 12.0, "images": 0.5},
    True: {"census": 10.0, "text": 40.0, "images": 5.0},
}
"""c in the mean stepsize c/k^exponent of each workload; clipped gradients need larger ones."""
_LONG_SCALES = {"text": 20.0}
"""c of unclipped trainings of the full table's length, which make up for larger first steps."""


class Setup:
    """A workload with its model, divided over the agents of a graph."""

    def __init__(self, name: str, settings: ClaimsSettings) -> None:
        self.name, self.settings, self.sizes = name, settings, settings.sizes
        self.graph: Graph = settings.network()

    @cached_property
    def images(self) -> Images:
        sizes, settings = self.sizes, self.settings
        model = sizes.models[DATA.index(self.name)]
        kind = sizes.images if self.name == "images" else self.name
        return Images(model=model, data=kind, data_dir=settings.data_dir, device=settings.device)

    @cached_property
    def attacked(self) -> tuple[ModuleProblem, Inputs]:
        """Batches of the one record that is looked for, and what is public of it."""
        return self.images.problem(self.graph.agents, 1)

    @cached_property
    def fixed(self) -> ModuleProblem:
        """The training with batches of a fixed size."""
        agents, batch = self.graph.agents, self.sizes.batch
        if self.name != "images":
            return self.images.problem(agents, batch)[0]
        one = self.images
        asked = Training(
            model=one.model, data=one.data, data_dir=one.data_dir, device=one.device, batch=batch
        )
        return asked.problem(*asked.portions(agents)[:2])

    @cached_property
    def sampled(self) -> ModuleProblem:
        """The training with Poisson batches, as a proof asks."""
        problem = copy(self.fixed)
        problem.sampling = replace(problem.sampling, poisson=True)
        return problem

    def training(self, mechanism: Mechanism) -> ModuleProblem:
        """The training of a mechanism: with Poisson batches where it clips."""
        return self.fixed if mechanism.bound is None else self.sampled

    @cached_property
    def public(self) -> tuple[Tensor, Tensor]:
        return self.images.public()

    @property
    def commonest(self) -> float:
        """The accuracy of always answering with the commonest label."""
        labels = self.public[1]
        return int(labels.bincount().max()) / len(labels)

    def proof(self, stepsize: Stepsize, redone: int = 0) -> ProofSettings:
        """What a guarantee is asked for: the whole training, for one record."""
        return ProofSettings.of(
            self.sampled.sampling,
            self.sizes.rounds,
            delta=self.settings.delta,
            stepsize=stepsize,
            redone=redone,
        )


@dataclass(frozen=True)
class Line:
    """A mechanism in the table.

    name: what it is called there. algorithm: a mechanism, its text, or one of `PLANNED`, whose
    noise is found for the asked ε. law: of private stepsizes, the mechanism's own unless given.
    exponent: of the mean stepsize; above 0.5, as the theorems ask. links: what protects them.
    claimed: in place of the mechanism's own claim.
    """

    name: str
    algorithm: Mechanism | str
    law: str | None = None
    exponent: float = 0.6
    links: str = "plain"
    claimed: Claim | None = None

    def stepsize(self, setup: Setup) -> Stepsize:
        law = LAWS[self.law] if self.law else self._unplanned.default_stepsize.law
        scale = _SCALES[self.clips][setup.name]
        if not self.clips and setup.sizes.rounds >= FULL.rounds:
            scale = _LONG_SCALES.get(setup.name, scale)
        return Stepsize(Power(scale, self.exponent), law)

    def mechanism(self, setup: Setup) -> Mechanism:
        """The chain, with as much noise as the asked ε needs where it is planned."""
        if self.algorithm not in PLANNED:
            return as_mechanism(self.algorithm)
        asked, graph, stepsize = setup.settings, setup.graph, self.stepsize(setup)
        training = setup.proof(stepsize)
        if self.algorithm in FAMILIES:
            target = Target(
                epsilon=asked.epsilon,
                training=training,
                graph=graph,
                algorithm=str(self.algorithm),
                clip=_CLIP,
            )
            return meet(target).mechanism
        rate = max(training.rate(agent) for agent in range(graph.agents))
        multiplier = multiplier_for(asked.epsilon, asked.delta, rate, training.rounds)
        return Muffliato(round(1.0001 * multiplier * _CLIP / training.batch, 6), clip=_CLIP)

    @property
    def clips(self) -> bool:
        """Whether samples' gradients are clipped, one by one."""
        return self._unplanned.bound is not None

    @property
    def claim(self) -> Claim:
        return self.claimed or self._unplanned.claim

    @property
    def _unplanned(self) -> Mechanism:
        return as_mechanism(self.algorithm)


PLANNED = (*FAMILIES, "muffliato")
REFERENCE: tuple[Line, ...] = (
    Line("dsgd", "dsgd"),
    Line("pdsgd", "pdsgd", "experiment"),
    Line("pdsgd, uniform law", "pdsgd", "uniform"),
    Line("pdsgd:coordinate", "pdsgd:coordinate", "experiment"),
    Line("noisy-dsgd", "noisy-dsgd:0.01"),
    Line("ldp-dsgd", "ldp-dsgd"),
    Line("decor", "decor"),
    Line("zip-dl", "zip-dl:0.1"),
    Line("muffliato", "muffliato"),
    Line("wang-nedic", "wang-nedic:0.1", exponent=1.0),
    Line("dp-pdsgd", "dp-pdsgd"),
    Line("masked sums", "dsgd", links="masked", claimed=CLAIMS["masked sums"]),
)
"""The mechanisms that every table has."""


def chosen(names: Sequence[str]) -> tuple[Line, ...]:
    """The lines of these names, or of any algorithm; all of them without names."""
    known = {line.name: line for line in REFERENCE}
    found = tuple(known.get(name) or Line(name, as_mechanism(name)) for name in names)
    if len({line.name for line in found}) < len(found):
        raise SottovoceError(f"a mechanism is given twice: {', '.join(names)}")
    return found or REFERENCE


def sizes_as_text(sizes: Sizes) -> str:
    """The sizes in a sentence."""
    return (
        f"{sizes.rounds:,} rounds with an expected batch of {sizes.batch}, {sizes.runs} runs; "
        f"round {sizes.round} of {sizes.targets} trainings attacked, the records looked for among "
        f"{sizes.candidates:,}; {sizes.pairs:,} simulated trainings with and without a record "
        f"bound ε from below; {sizes.shadows} shadow models"
    )
