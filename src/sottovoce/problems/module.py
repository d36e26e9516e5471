"""Any torch module with a loss and one dataset for each agent, as a problem."""

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.utils.data import DataLoader, Dataset, IterableDataset

from sottovoce.errors import ProblemError
from sottovoce.mechanisms import Bound
from sottovoce.problems.base import (
    Problem,
    in_huge_pages,
    plain_tensor,
    require_finite,
    require_sizes,
)
from sottovoce.problems.gradients.clipped import ClippedGradients, refuse_interacting_samples
from sottovoce.problems.gradients.layout import Loss, ParameterLayout, refuse_running_statistics
from sottovoce.problems.gradients.memory import free_memory
from sottovoce.problems.gradients.methods import Compute, ReplicaGradients
from sottovoce.problems.sampling import Sampling
from sottovoce.randomness import Streams
from sottovoce.storage.identity import identity_of

Samples = tuple[Any, Any] | Dataset[Any] | DataLoader[Any]
_EVALUATED_AT_ONCE = 500
_TENSORS_HELD = 3.5
"""States, their successors, steps, and half a tensor to work in."""


class ModuleProblem(Problem):
    """Training a module together: trainable parameters are one vector (d,) for each agent.

    model: any module without statistics over samples, on the device where the problem is to be
    computed; frozen parameters stay as they are. loss:
    `loss(outputs, targets)`, the mean over a batch, such as `torch.nn.functional.cross_entropy`.
    data: for each agent its training samples: a pair (inputs, targets) of tensors, arrays or lists,
    a torch Dataset or a DataLoader, which is read once. validation: a list with one set for each
    agent, or one set for all. initialise: `initialise(model, run)` gives the module the public
    starting weights of a run; the module's own weights serve when it is None. compute: how
    gradients are computed; `Compute(precision="bfloat16")` is faster on a GPU.

    A stochastic gradient uses `batch` samples drawn with replacement, or with `poisson` a Poisson
    sample of which `batch` are expected and by which its sum is divided (`Sampling`). Either way
    its expectation is the gradient of f_i (the paper's Assumption on gradients).
    """

    name: ClassVar[str] = "module"
    scratch: ClassVar[frozenset[str]] = frozenset({"model", "layout", "_gradients", "_clipped"})

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        data: Sequence[Samples],
        validation: list[Samples] | Samples | None = None,
        *,
        batch: int = 32,
        poisson: bool = False,
        initialise: Callable[[nn.Module, int], None] | None = None,
        compute: Compute = Compute(),  # noqa: B008
    ) -> None:
        refuse_running_statistics(model)
        if not isinstance(data, tuple | list):
            raise ProblemError(
                f"data is a {type(data).__name__}; accepted: a list with one set for each agent"
            )
        require_sizes(agents=len(data), batch=batch)
        self.model, self.loss, self.initialise = model, loss, initialise
        self.agents = len(data)
        self.layout = ParameterLayout(model)
        self.dimension = self.layout.dimension
        first = next(p for p in model.parameters() if p.requires_grad)
        self.dtype, self.device = first.dtype, first.device
        self._training = _AgentData.of(data, "training", self.dtype, self.device)
        _require_fit(model, loss, self._training)
        self.sampling = Sampling(tuple(self._training.counts.tolist()), batch, poisson)
        shape = tuple(self._training.inputs.shape[1:])
        self._gradients = ReplicaGradients(model, loss, compute, device=self.device, shape=shape)
        self._clipped: ClippedGradients | None = None
        self._validation = None
        if validation is not None:
            sets = validation if isinstance(validation, list) else [validation] * self.agents
            if len(sets) != self.agents:
                raise ProblemError(
                    f"there are validation sets for {len(sets)} agents and training sets for "
                    f"{self.agents}; give one for each agent, or one for all"
                )
            self._validation = _AgentData.of(sets, "validation", self.dtype, self.device)

    sampling: Sampling

    @property
    def batch(self) -> int:
        """How many samples a stochastic gradient uses, or is expected to use."""
        return self.sampling.batch

    @property
    def rounds_an_epoch(self) -> int:
        """Rounds after which an agent has drawn as many samples as the largest dataset holds."""
        return max(1, int(self._training.counts.max()) // self.batch)

    def start(self, runs: range, streams: Streams) -> Tensor:
        state = super().start(runs, streams)
        for row, run in enumerate(runs):
            if self.initialise is not None:
                self.initialise(self.model, run)
            state[row] = self.layout.vector(self.model)
        return state

    def gradient(self, state: Tensor, streams: Streams, round: int, out: Tensor) -> Tensor:
        if self.sampling.poisson:
            return self._summed(state, streams, round, out, None)
        self._settle()
        places = self._training.places(self.sampling.draw(streams, round).chosen).flatten(0, 1)
        self.model.train()
        vectors, gradients = state.flatten(0, 1), out.flatten(0, 1)
        for part in self._gradients.parts(len(vectors), self.batch):
            inputs, targets = self._training.at(places[part])
            self._gradients(vectors[part], inputs, targets, gradients[part])
        return out

    def clipped_gradient(
        self, state: Tensor, streams: Streams, round: int, out: Tensor, bound: Bound
    ) -> Tensor:
        return self._summed(state, streams, round, out, bound)

    def _summed(
        self, state: Tensor, streams: Streams, round: int, out: Tensor, bound: Bound | None
    ) -> Tensor:
        """(1/B) times the sum of samples' gradients, some replicas at a time."""
        self.model.train()
        if self._clipped is None:
            refuse_interacting_samples(self.model, self._training.inputs[:2])
            kernels = self._gradients.kernels
            reduced = None if kernels else self._gradients.reduced
            self._clipped = ClippedGradients(self.model, self.loss, self.device, kernels, reduced)
        chosen, present = self.sampling.draw(streams, round)
        places, present = self._training.places(chosen).flatten(0, 1), present.flatten(0, 1)
        vectors, sums = state.flatten(0, 1), out.flatten(0, 1)
        for part in self._clipped.replicas_at_once(present.shape, self._training.inputs[:1]):
            inputs, targets = self._training.at(places[part])
            self._clipped(vectors[part], inputs, targets, present[part], bound, sums[part])
        return out.div_(self.batch)

    def _settle(self) -> None:
        """Have it found out how gradients are best computed, if that takes a measurement."""
        if not self._gradients.settled:
            first = torch.zeros(self.batch, dtype=torch.long, device=self.device)
            self._gradients.settle(*self._training.at(first), self.agents)

    def samples(self, streams: Streams, round: int) -> tuple[Tensor, Tensor]:
        """The batches behind a round's gradients: inputs and targets (runs, agents, batch, ...).

        Poisson samples are padded; `sampling.draw` tells which of them count.
        """
        return self._training.rows(self.sampling.draw(streams, round).chosen)

    def records(self) -> tuple[Tensor, Tensor]:
        """All agents' training samples: inputs and targets, one row each."""
        return self._training.inputs, self._training.targets

    def mean_input(self) -> Tensor:
        """The mean of all agents' training inputs: the best guess without messages."""
        inputs = self._training.inputs
        return (inputs if inputs.is_floating_point() else inputs.to(self.dtype)).mean(0)

    def measure(self, state: Tensor) -> dict[str, Tensor]:
        """Loss and accuracy of every agent's own model on its own samples; ||x_i - x̄|| of each.

        For classification (whole-number targets) accuracies are measured too. The training figures
        use the first 1,000 samples of an agent.
        """
        mean = state.mean(1)
        apart = [(state[:, agent] - mean).norm(dim=-1) for agent in range(self.agents)]
        found = {"consensus": torch.stack(apart, 1)}
        found |= self._evaluate(state, self._training.first(1000), "training")
        if self._validation is not None:
            found |= self._evaluate(state, self._validation, "validation")
        return found

    def _evaluate(self, state: Tensor, data: "_AgentData", kind: str) -> dict[str, Tensor]:
        self.model.eval()
        runs = max(1, self._gradients.at_once(_EVALUATED_AT_ONCE) // self.agents)
        sums = torch.zeros(2, *state.shape[:2], dtype=torch.float64, device=self.device)
        for first_run in range(0, len(state), runs):
            part = slice(first_run, first_run + runs)
            for first in range(0, int(data.counts.max()), _EVALUATED_AT_ONCE):
                sums[:, part] += self._evaluate_part(state[part], data, first)
        loss, accuracy = sums / data.counts
        found = {f"{kind}_loss": loss}
        return found | {f"{kind}_accuracy": accuracy} if data.classification else found

    def _evaluate_part(self, state: Tensor, data: "_AgentData", first: int) -> Tensor:
        """Sums of losses and of right answers over some samples: (2, runs, agents)."""
        last = min(first + _EVALUATED_AT_ONCE, int(data.counts.max()))
        position = torch.arange(first, last, device=self.device)
        present = position < data.counts[:, None]
        clamped = torch.minimum(position, data.counts[:, None] - 1)
        inputs, targets = data.rows(clamped.expand(len(state), -1, -1))
        outputs = self._gradients.outputs(state.flatten(0, 1), inputs.flatten(0, 1))
        each = vmap(vmap(lambda output, target: self.loss(output[None], target[None])))
        losses = each(outputs, targets.flatten(0, 1)).unflatten(0, state.shape[:2])
        losses = torch.where(present, losses, 0.0).double().sum(-1)
        hits = torch.zeros_like(losses)
        if data.classification:
            right = outputs.argmax(-1).unflatten(0, state.shape[:2]) == targets
            hits = (right & present).double().sum(-1)
        return torch.stack([losses, hits])

    def runs_at_once(self) -> int:
        one_run = _TENSORS_HELD * self.agents * self.dimension * self.dtype.itemsize
        return max(1, int(0.7 * free_memory(self.device) / one_run))

    @property
    def spec(self) -> dict[str, Any]:
        model = self.model
        if self.initialise is not None:  # The weights that it leaves alone decide numbers, too.
            model = copy.deepcopy(model)
            with torch.random.fork_rng(devices=[]):
                torch.default_generator.manual_seed(0)
                self.initialise(model, 0)
        return {**super().spec, "module": identity_of(model)}

    def describe(self) -> dict[str, Any]:
        self._settle()
        return {
            "name": self.name,
            "model": type(self.model).__name__,
            "agents": self.agents,
            "dimension": self.dimension,
            "samples": self._training.counts.tolist(),
            "batch": self.batch,
            "poisson": self.sampling.poisson,
            "gradients": self._gradients.method,
            "precision": self._gradients.precision,
        }


class _AgentData:
    """Samples of all agents, stored one after the other."""

    def __init__(self, inputs: Tensor, targets: Tensor, first: Tensor, counts: Tensor) -> None:
        self.inputs, self.targets, self._first, self.counts = inputs, targets, first, counts
        self.classification = not targets.is_floating_point() and targets.ndim == 1

    @classmethod
    def of(
        cls, sets: Sequence[Samples], kind: str, dtype: torch.dtype, device: torch.device
    ) -> "_AgentData":
        agents = {id(samples): agent for agent, samples in enumerate(sets)}
        read = {at: _as_tensors(sets[agent], kind, agent) for at, agent in agents.items()}
        pairs = [read[id(samples)] for samples in sets]
        first = torch.tensor([0] + [len(x) for x, _ in pairs[:-1]]).cumsum(0)
        if all(x is pairs[0][0] and y is pairs[0][1] for x, y in pairs):
            first, (inputs, targets) = torch.zeros_like(first), pairs[0]
        else:
            try:
                inputs, targets = (torch.cat(parts) for parts in zip(*pairs, strict=True))
            except RuntimeError as error:
                raise ProblemError(
                    f"the agents' {kind} sets do not fit together: {error}"
                ) from error
        counts = torch.tensor([len(x) for x, _ in pairs], device=device)
        inputs = inputs.to(device, dtype if inputs.is_floating_point() else inputs.dtype)
        if kind == "training":
            inputs = in_huge_pages(inputs)
        whole = targets.dtype if targets.dtype == torch.bool else torch.long
        targets = targets.to(device, dtype if targets.is_floating_point() else whole)
        return cls(inputs, targets, first.to(device), counts)

    def rows(self, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """Samples by their number within each agent's set: (runs, agents, n) -> (.., n, ...)."""
        return self.at(self.places(chosen))

    def places(self, chosen: Tensor) -> Tensor:
        """Where those samples are among all agents': (runs, agents, n)."""
        return chosen + self._first[:, None]

    def at(self, places: Tensor) -> tuple[Tensor, Tensor]:
        """Samples by their places: (..., n) -> (..., n, ...)."""
        flat = places.flatten()
        inputs, targets = (data.index_select(0, flat) for data in (self.inputs, self.targets))
        return inputs.unflatten(0, places.shape), targets.unflatten(0, places.shape)

    def first(self, most: int) -> "_AgentData":
        return _AgentData(self.inputs, self.targets, self._first, self.counts.clamp(max=most))


def _require_fit(model: nn.Module, loss: Loss, data: _AgentData) -> None:
    """Raise unless the loss of one sample can be computed: the one with the largest target."""
    at = data.targets.reshape(len(data.targets), -1).amax(1).argmax()
    inputs, targets = data.inputs[at][None], data.targets[at][None]
    training = model.training
    try:
        with torch.no_grad():
            outputs = model.eval()(inputs)
            value = loss(outputs, targets)
    except (RuntimeError, IndexError, TypeError, ValueError) as error:
        raise ProblemError(
            f"the model and the loss do not take a batch of one sample, inputs {_form(inputs)} and "
            f"targets {_form(targets)}; give samples of the shape that the model takes, and for "
            "cross entropy whole-number targets below the number of its outputs"
        ) from error
    finally:
        model.train(training)
    if not isinstance(value, Tensor) or value.ndim:
        given = _form(value) if isinstance(value, Tensor) else type(value).__name__
        raise ProblemError(f"the loss is {given}; accepted: one number, the mean over a batch")


def _form(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} of {str(tensor.dtype).removeprefix('torch.')}"


def _as_tensors(samples: Samples, kind: str, agent: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets, a row each: a pair, a Dataset's items, or a DataLoader's batches."""
    name = f"the {kind} set of agent {agent}"
    try:
        if isinstance(samples, tuple | list):
            inputs, targets = map(plain_tensor, samples)
        elif isinstance(samples, DataLoader):
            inputs, targets = map(torch.cat, _columns(samples))
        elif isinstance(samples, IterableDataset):
            inputs, targets = map(torch.stack, _columns(samples))
        elif isinstance(samples, Dataset):
            items = (samples[i] for i in range(len(samples)))  # type: ignore[arg-type]
            inputs, targets = map(torch.stack, _columns(items))
        else:
            raise TypeError("it holds no inputs and targets")
    except (TypeError, ValueError, RuntimeError) as error:
        raise ProblemError(
            f"{name} is a {type(samples).__name__} that cannot be read: {error}; accepted: a pair "
            "(inputs, targets) of tensors, numpy arrays or lists, or a torch Dataset or DataLoader "
            "of such pairs"
        ) from error
    counts = [one.shape[0] if one.ndim else 0 for one in (inputs, targets)]
    if not counts[0] or counts[0] != counts[1]:
        raise ProblemError(
            f"{name} has {counts[0]} inputs and {counts[1]} targets; every agent needs at least "
            "one sample and as many targets as inputs"
        )
    if inputs.is_floating_point():
        require_finite(name, inputs)
    return inputs, targets


def _columns(rows: Iterable[Any]) -> Iterator[list[Tensor]]:
    """All inputs and all targets of pairs."""
    return ([plain_tensor(one) for one in column] for column in zip(*rows, strict=True))
