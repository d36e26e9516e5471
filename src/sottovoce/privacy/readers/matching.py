"""The objectives of gradient inversion: how far a candidate's gradient lies from an estimate.

Many candidates are evaluated in one vectorised pass, each at its own parameter vector.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from sottovoce.errors import AttackError
from sottovoce.privacy.knowledge import Inputs
from sottovoce.privacy.matched_filter import compress
from sottovoce.problems.gradients.layout import ParameterLayout

Mismatch = Callable[[Tensor, Tensor], Tensor]


class BatchedGradient:
    """The flat gradient of the cross entropy for many (parameters, inputs, labels) at once.

    Its coordinates are the trainable parameters in the order of `ParameterLayout`; frozen ones stay
    at the module's own values. `chunk` problems are vectorised together; 1 means a plain loop.
    """

    def __init__(self, model: nn.Module, dimension: int, device: torch.device, chunk: int | None):
        self.model, self.layout = model, ParameterLayout(model)
        self.dimension = self.layout.dimension
        if dimension != self.dimension:
            raise AttackError(
                f"the gradient has {dimension} entries and the model {self.dimension} trainable "
                "parameters; both must be in the order of model.parameters()"
            )
        if chunk is not None and chunk < 1:
            raise AttackError(f"chunk must be at least 1, got {chunk}")
        self.chunk = chunk or self._default_chunk(device)

    def _default_chunk(self, device: torch.device) -> int:
        if device.type == "cpu":
            return 32 if self.dimension <= 200_000 else 4
        # A double backward pass holds a few dozen tensors of the size of the parameters.
        return max(1, min(256, 8 * 10**9 // (4 * 64 * self.dimension)))

    def scores(self, vector: Tensor, fed: Tensor) -> Tensor:
        """What the model with the flat parameters (d,) answers to inputs (batch, *shape)."""
        scores: Tensor = functional_call(self.model, self.layout.views(vector), (fed,))
        return scores

    def one(self, vector: Tensor, fed: Tensor, labels: Tensor) -> Tensor:
        """Return the gradient (d,) at `vector` of one batch: fed (batch, *shape), soft labels."""

        def loss(vector: Tensor) -> Tensor:
            losses: Tensor = -(labels * self.scores(vector, fed).log_softmax(-1)).sum(-1)
            return losses.mean()

        gradient: Tensor = grad(loss)(vector)
        return gradient

    def __call__(self, vectors: Tensor, fed: Tensor, labels: Tensor) -> Tensor:
        """Return gradients (problems, d); differentiable in fed and labels."""
        if len(vectors) == 1 or self.chunk == 1:
            rows = [self.one(*row) for row in zip(vectors, fed, labels, strict=True)]
            return torch.stack(rows)
        gradients: Tensor = vmap(self.one)(vectors, fed, labels)
        return gradients


def jumps(model: nn.Module) -> bool:
    """Say whether the gradient of the weights jumps as the input moves: max pooling and ReLU do."""
    kinds = (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.ReLU, nn.LeakyReLU, nn.Hardtanh)
    return any(isinstance(module, kinds) for module in model.modules())


def full_precision(device: torch.device) -> AbstractContextManager[None]:
    """Keep convolutions in full float32 on a GPU: TF32 errors of 1e-3 stop any line search."""
    cudnn = torch.backends.cudnn
    if device.type != "cuda":
        return nullcontext()
    flags: AbstractContextManager[None] = cudnn.flags(
        cudnn.enabled, cudnn.benchmark, deterministic=cudnn.deterministic, allow_tf32=False
    )
    return flags


def classes_of(gradient: BatchedGradient, state: Tensor, inputs: Inputs) -> int:
    """Ask the model how many classes it scores, with one black input."""
    fed = inputs.standardise(state.new_full((1, *inputs.shape), inputs.low))
    with torch.no_grad():
        scores = gradient.scores(state, fed)
    if scores.dim() != 2 or scores.shape[1] < 2:
        raise AttackError(
            f"the model maps an input of shape {inputs.shape} to {tuple(scores.shape[1:])}; "
            "accepted is a classifier that gives (classes,) scores"
        )
    return int(scores.shape[1])


def squared_distance(candidate: Tensor, estimate: Tensor) -> Tensor:
    """Return |candidate - estimate|² / |estimate|² for each row: DLG's distance, normalised."""
    return (candidate - estimate).square().sum(1) / estimate.square().sum(1)


def misalignment(power: float) -> Mismatch:
    """Return the scale-free distance 1 - cos² of two compressed vectors, row by row.

    Computed as |a - (a·ê)ê|² / |a|², which keeps its digits where 1 - cos² would cancel. The power
    1 suits exact gradients and additive noise; 1/4 suits a random stepsize for each coordinate,
    whose spread it shrinks (see `compress`).
    """
    if not 0 < power <= 1:
        raise AttackError(f"power must lie in (0, 1], got {power}")

    def distance(candidate: Tensor, estimate: Tensor) -> Tensor:
        a = compress(candidate, power)
        e = torch.nn.functional.normalize(compress(estimate, power), dim=1)
        rest = a - (a * e).sum(1, keepdim=True) * e
        return rest.square().sum(1) / a.square().sum(1).clamp_min(torch.finfo(a.dtype).tiny)

    return distance


def magnitude_misalignment(power: float) -> Mismatch:
    """Return 1 - r² with r the correlation of |candidate|^power and |estimate|^power, row by row.

    For an estimate whose coordinates each have a factor of unknown sign.
    """
    aligned = misalignment(1.0)

    def distance(candidate: Tensor, estimate: Tensor) -> Tensor:
        a, e = (_squares(vectors, 1e-2).pow(power / 2) for vectors in (candidate, estimate))
        return aligned(a - a.mean(1, keepdim=True), e - e.mean(1, keepdim=True))

    return distance


def sign_free_likelihood(candidate: Tensor, estimate: Tensor) -> Tensor:
    """Return -2 log p(e | a) / d, row by row, for e = c a with c Gaussian at every coordinate.

    The logarithm of the mean of e² / a² less the mean of its logarithm, which is at least 0: the
    unknown scale of c is put at its most likely value, its sign plays no part. Entries below 0.3 of
    the root mean square count for little: with all their logarithms the search finds nothing.
    """
    ratio = _squares(estimate, 0.3) / _squares(candidate, 0.3)
    return ratio.mean(1).log() - ratio.log().mean(1)


def _squares(vectors: Tensor, floor: float) -> Tensor:
    """Squares in units of the row's mean square, kept above `floor`²."""
    squares = vectors.square()
    scale = squares.mean(1, keepdim=True).clamp_min(torch.finfo(vectors.dtype).tiny)
    return squares / scale + floor**2


def variation_of(images: Tensor) -> Tensor:
    """Return the mean absolute difference of neighbouring pixels, (problems,).

    images: (problems, ..., height, width); images without two spatial axes have none: 0.
    """
    if images.dim() < 4:
        return images.new_zeros(len(images))
    down = (images[..., 1:, :] - images[..., :-1, :]).abs().flatten(1).mean(1)
    right = (images[..., 1:] - images[..., :-1]).abs().flatten(1).mean(1)
    return down + right
