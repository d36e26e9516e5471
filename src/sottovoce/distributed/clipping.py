"""What a real agent computes in place of `loss.backward()`, and which samples it draws for that."""

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from weakref import WeakSet

import torch
from torch import Tensor, nn

from sottovoce.distributed.parameters import checksum
from sottovoce.errors import DistributedError, ProblemError
from sottovoce.mechanisms import Bound
from sottovoce.problems.gradients.clipped import ClippedGradients, refuse_interacting_samples
from sottovoce.problems.gradients.layout import Loss, refuse_running_statistics
from sottovoce.problems.sampling import Sampling, poisson_sample
from sottovoce.randomness import Streams

_APART: WeakSet[nn.Module] = WeakSet()
"""Modules whose samples were seen not to interact; the bound does not rest on it."""


def clipped_backward(
    model: nn.Module,
    loss: Loss,
    inputs: Tensor,
    targets: Tensor,
    *,
    bound: Bound | None,
    batch: int,
    seed: int | None = None,
) -> None:
    """Add (1/B) Σ_n c_n ∇loss(model(x_n), y_n) to the `.grad` of the model's parameters.

    inputs, targets: (n, ...), the samples of a batch, which may be empty. bound: c_n by the norm of
    each sample's gradient, 1 without one. batch: B, the (expected) batch that all agents agreed on,
    whatever n is. seed: of the module's own random numbers, torch's generator as it stands unless
    given. The numbers are those that the simulator computes for a `ModuleProblem`, and autocast is
    off for them. Nothing is returned: a loss of private samples is not protected by what protects
    their gradients.
    """
    _require_apart(model, inputs)
    if len(inputs) != len(targets):
        raise ProblemError(f"there are {len(inputs)} inputs and {len(targets)} targets")
    if batch < 1:
        raise ProblemError(f"batch is {batch}; it must be at least 1")
    clipped = ClippedGradients(model, loss, inputs.device)
    vector = clipped.layout.vector(model).unsqueeze(0)
    present = torch.ones(1, len(inputs), dtype=torch.bool, device=inputs.device)
    total = torch.zeros_like(vector)
    # Half-precision products would let samples through that are longer than the bound.
    with torch.autocast(inputs.device.type, enabled=False), _drawing_under(seed, inputs.device):
        clipped(vector, inputs.unsqueeze(0), targets.unsqueeze(0), present, bound, total)
    gradients = clipped.layout.views(total.div_(batch)[0])
    for name, parameter in model.named_parameters():
        if name in gradients:
            found = gradients[name]
            parameter.grad = found if parameter.grad is None else parameter.grad + found


def poisson_indices(streams: Streams, round: int, size: int, batch: int) -> Tensor:
    """Private indices in [0, size) of a Poisson sample: each on its own with the rate batch / size.

    streams: of one agent. They are the samples that the simulator draws for this agent and round,
    in the same order.
    """
    Sampling((size,), batch, poisson=True)
    chosen, present = poisson_sample(streams, round, size, batch)
    return chosen[0, 0][present[0, 0]].cpu()


class Clipping:
    """What an agent agreed on for its samples, and whether its gradients were computed so.

    bound: of the algorithm, if it has one. batch: the (expected) batch. poisson: whether batches
    are Poisson samples.
    """

    def __init__(self, bound: Bound | None, batch: int | None, poisson: bool) -> None:
        if batch is None and poisson:
            raise DistributedError(
                "poisson is given without batch, the number of samples that a batch is expected to "
                "have; give batch, too"
            )
        if batch is not None and batch < 1:
            raise DistributedError(f"batch is {batch}; it must be at least 1")
        self._bound, self.batch, self.poisson = bound, batch, poisson
        self._made: list[tuple[Tensor, int]] = []
        self._sum = 0
        self._drawn = -1 if poisson else batch or 0
        self._taken = 0

    @property
    def facts(self) -> dict[str, str]:
        """What all agents must have alike, by the name under which a mismatch is reported."""
        kind = "Poisson samples, expected" if self.poisson else "samples"
        return {"batch": "not given" if self.batch is None else f"{self.batch} {kind}"}

    def backward(
        self,
        model: nn.Module,
        loss: Loss,
        inputs: Tensor,
        targets: Tensor,
        repeatable: bool = False,
    ) -> None:
        """Add the clipped gradient of samples to `.grad`, and remember that it is one.

        repeatable: whether a module that draws at random, as dropout does, draws from torch's
        generator as it stands, which others may know. What it draws for a sample depends on the
        sample's place: one record more would change that of all samples behind it.
        """
        if self.batch is None:
            raise DistributedError(
                "backward() divides by the batch that the agents agreed on, and none was given; "
                "create the optimizer with batch=, the (expected) number of samples of a batch"
            )
        if self._bound is not None and not self._made and _holds_any(model):
            raise DistributedError(
                "the gradients of an earlier round, or of another loss, are still in .grad, where "
                "they would count once more; call optimizer.zero_grad() before backward()"
            )
        seed = None if self._bound is None or repeatable else secrets.randbits(64)
        clipped_backward(
            model, loss, inputs, targets, bound=self._bound, batch=self.batch, seed=seed
        )
        self._taken += len(inputs)
        found = (parameter.grad for parameter in model.parameters())
        self._made = [(one, one._version) for one in found if one is not None]
        self._sum = checksum(one for one, _ in self._made)

    def poisson_sample(
        self, streams: Streams, round: int, size: int, batch: int | None = None
    ) -> Tensor:
        """The indices of a round's Poisson sample; the batch is the agreed one."""
        expected = self.batch if batch is None else batch
        if not self.poisson or expected is None or expected != self.batch:
            agreed = f"{self.batch} {'Poisson' if self.poisson else 'fixed'}"
            raise DistributedError(
                f"a Poisson sample with batch {expected} was asked for, and the agents agreed on "
                f"{agreed}; create the optimizer with batch={expected or 256} and poisson=True"
            )
        return poisson_indices(streams, round, size, expected)

    def drawn(self, sample: Tensor, *, poisson: bool) -> None:
        """Take the indices that were drawn, if in the agreed way, as those of this round."""
        if poisson == self.poisson:
            self._drawn = len(sample)

    def require(self, parameters: Sequence[Tensor]) -> None:
        """Raise unless the gradients are those that `backward` made of this round's batch.

        An algorithm without a bound takes any gradients.
        """
        made, self._made = self._made, []
        drawn, self._drawn = self._drawn, -1 if self.poisson else self.batch or 0
        taken, self._taken = self._taken, 0
        if self._bound is None:
            return
        known = {id(gradient): version for gradient, version in made}
        found = [one.grad for one in parameters if one.grad is not None]
        altered = any(known.get(id(one)) != one._version for one in found)
        if not made or altered or checksum(one for one, _ in made) != self._sum:
            raise DistributedError(
                "the algorithm bounds what single samples contribute, and the gradients "
                + ("were altered after" if made else "were not computed by")
                + " optimizer.backward(model, loss, inputs, targets); call it in place of "
                "loss.backward() and leave .grad as it is; nothing was sent"
            )
        if drawn < 0:
            raise DistributedError(
                "the agents agreed on Poisson samples, and none was drawn for this round; call "
                "optimizer.poisson_sample(size) for the indices of every batch; nothing was sent"
            )
        if taken > drawn or (self.poisson and taken < drawn):
            # Not how many: sizes of Poisson samples are private.
            raise DistributedError(
                f"backward() was given {'more' if taken > drawn else 'fewer'} samples than the "
                "round's batch has; give it every sample of the batch once, in pieces where memory "
                "is short: a batch that is cut, or comes from elsewhere, is no Poisson sample; "
                "nothing was sent"
            )


@contextmanager
def _drawing_under(seed: int | None, device: torch.device) -> Iterator[None]:
    """Have torch draw under a seed, if one is given, and put its generators back."""
    if seed is None:
        yield
        return
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


def _holds_any(model: nn.Module) -> bool:
    """Whether some gradient is there and not zero."""
    found = (parameter.grad for parameter in model.parameters())
    return any(one is not None and bool(one.any()) for one in found)


def _require_apart(model: nn.Module, inputs: Tensor) -> None:
    """Raise if the samples of the first batch interact in the module."""
    refuse_running_statistics(model)
    if model not in _APART and len(inputs):
        refuse_interacting_samples(model, inputs)
        _APART.add(model)
