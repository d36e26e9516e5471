"""Tables and texts that are audited: census records and Shakespeare's words, with their models."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from sottovoce.errors import ProblemError
from sottovoce.privacy.knowledge import Inputs
from sottovoce.problems import ModuleProblem
from sottovoce.problems.data.census import Census, load_census, load_full_census
from sottovoce.problems.data.records import Records, by_owner
from sottovoce.problems.data.shakespeare import CONTEXT, load_plays
from sottovoce.problems.data.word_models import SmallTransformer, WordAverage, initialise_words


@dataclass(frozen=True, eq=False)
class Workload:
    """Records with natural owners, and models by name; the first one is the smallest.

    form: what is public of a record. initialise: sets the starting weights of a run; without it all
    weights start at 0.
    """

    training: Records
    validation: Records
    form: Inputs
    models: dict[str, Callable[[], nn.Module]]
    initialise: Callable[[nn.Module, int], None] | None = None

    def problem(self, model: str, agents: int, batch: int = 1) -> tuple[ModuleProblem, Inputs]:
        """The records divided over agents by their owners, and what is public about them.

        model: a name, or "small" for the smallest one.
        """
        if model not in ("small", *self.models):
            accepted = ", ".join(("small", *self.models))
            raise ProblemError(f"model {model!r} is not known for these data; accepted: {accepted}")
        made = self.models[next(iter(self.models)) if model == "small" else model]()
        held = by_owner(self.training, agents)
        problem = ModuleProblem(
            made,
            cross_entropy,
            [self.training.at(own) for own in held.indices],
            self.public(),
            batch=batch,
            initialise=self.initialise or _zero,
        )
        return problem, self.form

    def held(self, agents: int, agent: int) -> tuple[Tensor, Tensor]:
        """The records of one of several agents, and their labels."""
        return self.training.at(by_owner(self.training, agents).indices[agent])

    def public(self) -> tuple[Tensor, Tensor]:
        """Records of the same kind that no agent has, and their labels."""
        return self.validation.inputs, self.validation.labels


def census(data_dir: str | None = None) -> Workload:
    """Census records: does a person earn more than 50,000 dollars? Divided by occupation."""
    return _census(load_census())


def full_census(data_dir: str | None = None) -> Workload:
    """All published census records, from `data_dir` or downloaded once."""
    return _census(load_full_census(data_dir))


def _census(data: Census) -> Workload:
    features = data.training.inputs.shape[1]
    form = Inputs((features,), binary=True, groups=data.groups)
    return Workload(
        data.training, data.validation, form, {"linear": lambda: nn.Linear(features, 2)}
    )


def text(data_dir: str | None = None) -> Workload:
    """Shakespeare's words: which word follows eight others? Divided by speaker."""
    data = load_plays()
    size = len(data.words)
    form = Inputs((CONTEXT,), vocabulary=size)
    models: dict[str, Callable[[], nn.Module]] = {
        "embedding": lambda: WordAverage(size, CONTEXT),
        "transformer": lambda: SmallTransformer(size, CONTEXT),
    }
    return Workload(data.training, data.validation, form, models, initialise_words)


WORKLOADS: dict[str, Callable[[str | None], Workload]] = {
    "census": census,
    "census-full": full_census,
    "text": text,
}
"""Tables and texts by the name of the command line; they get the user's folder of data."""


def _zero(model: nn.Module, run: int) -> None:
    for one in model.parameters():
        nn.init.zeros_(one)
