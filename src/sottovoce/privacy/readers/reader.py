"""Readers: objects that turn a gradient estimate into the data behind it, with their controls."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from sottovoce.errors import AttackError
from sottovoce.privacy.attacks import Estimate
from sottovoce.privacy.knowledge import Inputs, Knowledge
from sottovoce.privacy.matched_filter import WIDE_SPREAD
from sottovoce.privacy.readers.layers import dense_first_layer, infer_label, linear_layer
from sottovoce.privacy.readers.matching import (
    magnitude_misalignment,
    misalignment,
    sign_free_likelihood,
    squared_distance,
)
from sottovoce.privacy.readers.search import Inversion, MatchingProblem, Search


@dataclass(frozen=True, eq=False)
class Answer:
    """The truth about some targets: images, labels, gradients and states, one row a target."""

    images: Tensor
    labels: Tensor
    gradient: Tensor
    state: Tensor


@dataclass(frozen=True)
class Reader(ABC):
    """A way from a gradient estimate to images and labels, with two controls of its own.

    tokens: whether it reads numbers of tokens; all others read pixels or features.
    """

    name: ClassVar[str]
    tokens: ClassVar[bool] = False
    any_loss: ClassVar[bool] = False
    """Whether it reads gradients of any loss; others presume cross entropy over classes."""
    search: Search = field(default_factory=Search)

    def suits(self, model: nn.Module, inputs: Inputs, estimate: Estimate, noisy: bool) -> bool:
        """Whether it can read an estimate: most need the signs.

        noisy: whether there is noise on the estimate that does not scale with it.
        """
        return estimate.signs_known

    def informed(self, knowledge: Knowledge) -> "Reader":
        """The same reader with what is public beside the messages, for one that can use it."""
        return self

    @abstractmethod
    def read(
        self, model: nn.Module, estimate: Estimate, inputs: Inputs, spread: float
    ) -> Inversion:
        """Turn estimates of (targets, d) into images.

        spread: std/mean of the private factors on single coordinates, a public number.
        """

    def controls(self, answer: Answer) -> dict[str, Estimate]:
        """`exact gradient`, which must give the images away, and `noise`, which must not."""
        rms = answer.gradient.double().square().mean(1, keepdim=True).sqrt()
        draws = torch.randn(answer.gradient.shape, generator=torch.Generator().manual_seed(0))
        state = answer.state.double()
        return {
            "exact gradient": Estimate(answer.gradient.double(), True, state),
            "noise": Estimate(rms * draws, True, state),
        }


@dataclass(frozen=True)
class Matching(Reader):
    """A reader that compares the estimate with the gradients of candidates."""

    def read(
        self, model: nn.Module, estimate: Estimate, inputs: Inputs, spread: float
    ) -> Inversion:
        parameters = next(model.parameters())
        state, gradient = estimate.state.to(parameters), estimate.gradient.to(parameters)
        # Lengths far from 1 would meet the smallest numbers of float32 in the search.
        if not estimate.scale_known:
            gradient = gradient / gradient.norm(dim=1, keepdim=True).clamp_min(1e-30)
        return self._invert(MatchingProblem(model, state, gradient, inputs, self.search), spread)

    @abstractmethod
    def _invert(self, problem: MatchingProblem, spread: float) -> Inversion: ...


@dataclass(frozen=True)
class Dlg(Matching):
    """Match the gradient itself, which needs its scale: the paper's attacker.

    Deep leakage from gradients (Zhu, Liu and Han 2019): minimise |∇L(x, softmax(y)) - g|² over the
    input x and the label scores y jointly. Inputs start with a deviation of 0.3, because the
    original's 1 saturates the first layer of a sigmoid network with large weights.

    confined: whether to keep to the pixel box and read the label of a single image from the last
    layer (Zhao, Mopuri and Bilen 2020); the original does not, and is slow with max pooling.
    """

    name: ClassVar[str] = "dlg"
    confined: bool = False

    def suits(self, model: nn.Module, inputs: Inputs, estimate: Estimate, noisy: bool) -> bool:
        return estimate.signs_known and estimate.scale_known

    def _invert(self, problem: MatchingProblem, spread: float) -> Inversion:
        if self.confined:
            return problem.invert(squared_distance, _likeliest(problem), score_spread=1.0)
        return problem.invert(squared_distance, confined=False, spread=0.3, score_spread=1.0)


@dataclass(frozen=True)
class Projection(Matching):
    """Match the direction, for a gradient known up to one scalar of unknown sign.

    Minimise 1 - cos²(φ(∇L(x)), φ(g)) + τ TV(x) with φ(v) = sign(v)|v|^power: compressed and
    smoothed where the spread is wide.
    """

    name: ClassVar[str] = "projection"

    def _invert(self, problem: MatchingProblem, spread: float) -> Inversion:
        power, smooth = (0.25, 0.01) if spread > WIDE_SPREAD else (1.0, 0.0)
        return problem.invert(misalignment(power), _likeliest(problem), total_variation=smooth)


@dataclass(frozen=True)
class SmoothProjection(Matching):
    """Match the direction with a prior for smooth images, against noise on the estimate.

    Noise may hide the label: the search tries the likeliest ones, a restart each.
    """

    name: ClassVar[str] = "smooth-projection"

    def suits(self, model: nn.Module, inputs: Inputs, estimate: Estimate, noisy: bool) -> bool:
        return estimate.signs_known and noisy and len(inputs.shape) > 1

    def _invert(self, problem: MatchingProblem, spread: float) -> Inversion:
        labels = _likeliest(problem, self.search.restarts)
        return problem.invert(misalignment(1.0), labels, total_variation=0.1)


@dataclass(frozen=True)
class Magnitude(Matching):
    """Match magnitudes where every coordinate has a factor of unknown sign.

    Minimise 1 - corr²(|∇L(x)|^(1/2), |g|^(1/2)) + τ TV(x). The label of a batch of one is that of
    the last layer's longest row.
    """

    name: ClassVar[str] = "magnitude"
    likelihood: ClassVar[bool] = False

    def suits(self, model: nn.Module, inputs: Inputs, estimate: Estimate, noisy: bool) -> bool:
        return not estimate.signs_known

    def _invert(self, problem: MatchingProblem, spread: float) -> Inversion:
        mismatch = sign_free_likelihood if self.likelihood else magnitude_misalignment(0.5)
        labels = _likeliest(problem, signs=False)
        return problem.invert(mismatch, labels, total_variation=0.01)

    def controls(self, answer: Answer) -> dict[str, Estimate]:
        """The magnitudes of the exact gradient, and of noise, each with random signs."""
        coins = torch.randint(
            0, 2, answer.gradient.shape, generator=torch.Generator().manual_seed(1)
        )
        return {
            name: replace(
                one, gradient=one.gradient * (2 * coins - 1), scale_known=False, signs_known=False
            )
            for name, one in super().controls(answer).items()
        }


@dataclass(frozen=True)
class Likelihood(Magnitude):
    """As `Magnitude`, by the likelihood of Gaussian factors (`sign_free_likelihood`)."""

    name: ClassVar[str] = "likelihood"
    likelihood: ClassVar[bool] = True


@dataclass(frozen=True)
class LinearLayer(Reader):
    """Read the input of a dense first layer from its gradient (`linear_layer`); no search.

    Labels are those of the last layer where it shows them, else the first class.
    """

    name: ClassVar[str] = "linear-layer"
    any_loss: ClassVar[bool] = True

    def suits(self, model: nn.Module, inputs: Inputs, estimate: Estimate, noisy: bool) -> bool:
        return (
            estimate.signs_known and inputs.batch_size == 1 and dense_first_layer(model) is not None
        )

    def read(
        self, model: nn.Module, estimate: Estimate, inputs: Inputs, spread: float
    ) -> Inversion:
        images = linear_layer(model, estimate.gradient, inputs)[:, None]
        nothing = torch.zeros(len(images), device=images.device)
        try:
            labels = infer_label(model, estimate.gradient).labels[:, None]
        except AttackError:
            labels = nothing.long()[:, None]
        return Inversion(images, labels, nothing, nothing, nothing > 0, nothing.long())


def _likeliest(
    problem: MatchingProblem, candidates: int = 1, *, signs: bool = True
) -> Tensor | None:
    """The likeliest labels of batches of one, (targets, candidates, 1); None where none are known.

    Of two classes the signs tell nothing: both are tried. Larger batches, and models without a
    dense last layer that is trained, leave labels to the search.
    """
    if problem.inputs.batch_size > 1:
        return None
    if problem.classes == 2:
        return torch.arange(2).expand(problem.targets, 2)[:, :, None]
    try:
        ranked = infer_label(problem.model, problem.gradient, signs=signs).ranked
    except AttackError:
        return None
    return ranked[:, :candidates, None]
