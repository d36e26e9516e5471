"""What an attack on messages returns, and what all attacks read out of a view."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sottovoce.errors import AttackError
from sottovoce.privacy.adversaries import View
from sottovoce.privacy.columns import ends_of
from sottovoce.privacy.knowledge import Candidates, Knowledge


@dataclass(frozen=True, eq=False)
class Estimate:
    """What an attack makes of one target's gradient in one round, for every run of a view.

    gradient: (runs, d) float64, an estimate of g_j (of Λ_j g_j / λ̄ where Λ is private).
    scale_known: whether its length means something; if not, g is known up to one scalar of either
    sign. step: (runs, d), Λ_j g_j itself, where the attack finds it. state: (runs, d), the
    parameters x_j at which the gradient was taken, or the adversary's best guess of them.
    signs_known: whether the signs of single coordinates mean something; if not, only magnitudes do.
    rounding: (runs, d), how much of a coordinate of `gradient` the rounding of messages can be,
    where the attack knows. others: the summed squares of the factors with which gradients of other
    rounds and agents are in the estimate beside the target's own, at factor 1.
    """

    gradient: Tensor
    scale_known: bool
    state: Tensor
    step: Tensor | None = None
    signs_known: bool = True
    rounding: Tensor | None = None
    others: float = 0.0


class Attack(ABC):
    """Turn messages into a gradient estimate; raise an AttackError that names what is missing."""

    name: ClassVar[str]
    around: ClassVar[tuple[int, int]] = (0, 0)
    """How many rounds before and after the attacked one must be recorded."""
    several: ClassVar[bool] = False
    """Whether it reads rounds of several exchanges, too."""

    def rounds(self, round: int) -> list[int]:
        """The rounds that must be recorded to attack `round`."""
        before, after = self.around
        return list(range(max(1, round - before), round + after + 1))

    def informed(self, knowledge: Knowledge, candidates: Candidates, spread: float) -> "Attack":
        """The same attack with what is public beside the messages, for one that can use it.

        candidates: records among which those of all agents' batches may be; spread: std/mean of
        private factors on single coordinates.
        """
        return self

    @abstractmethod
    def estimate(self, view: View, target: int, round: int) -> Estimate:
        """The target's gradient in a round, or an AttackError that names what is not seen."""

    def _require_target(self, view: View, target: int) -> None:
        if view.blind:
            raise AttackError(
                f"{self.name} needs messages; on encrypted links an eavesdropper sees none of "
                "their content. Curious agents still read what they receive"
            )
        if view.algorithm.exchanges > 1 and not self.several:
            raise AttackError(
                f"{self.name} reads one exchange of messages a round; {view.algorithm} has "
                f"{view.algorithm.exchanges}"
            )
        if target in view.inside:
            raise AttackError(f"agent {target} is one of the curious agents; nothing to attack")
        if not 0 <= target < view.graph.agents:
            raise AttackError(
                f"there is no agent {target}; agents are 0 to {view.graph.agents - 1}"
            )

    def _require_links(self, view: View, target: int, least: int) -> list[int]:
        """The seen links on which the target sends; raise if there are fewer than `least`."""
        self._require_target(view, target)
        links = view.links_from(target)
        if len(links) < least:
            degree = len(view.graph.neighbours(target))
            if view.sums is not None:
                raise AttackError(
                    f"{self.name} reads single messages; on masked links the adversary sees sums "
                    "over neighbourhoods alone (`long-range` reads them)"
                )
            raise AttackError(
                f"{self.name} needs {least} messages of agent {target} in one round; the adversary "
                f"sees {len(links)} of its {degree} links"
            )
        return links

    def _require_all_links(self, view: View, target: int) -> None:
        self._require_target(view, target)
        if not view.sees_all_links_of(target):
            degree = len(view.graph.neighbours(target))
            seen = len(view.links_from(target)) + len(view.links_to(target))
            raise AttackError(
                f"{self.name} needs all messages from and to agent {target}; the adversary sees "
                f"{seen} of {2 * degree}"
            )

    def _require_shares(self, view: View) -> None:
        if keeps_whole_step(view):
            raise AttackError(
                f"{self.name} needs shares of the step in the messages; {view.algorithm} sends "
                "none (`conventional` reads its states)"
            )


def keeps_whole_step(view: View) -> bool:
    """Whether messages are w_ij x_j alone, as in DSGD."""
    mechanism, routes = view.algorithm, view.graph.routes()
    sent = mechanism.split.mean(routes)[~routes.own]
    return not (mechanism.at("shares") or mechanism.at("messages") or bool(sent.any()))


def draws_by_coordinate(view: View) -> bool:
    """Whether a private coefficient b_ij is drawn anew at every coordinate."""
    return not view.algorithm.split.scalar


def expected_shares(view: View, links: list[int]) -> Tensor:
    """The public means of the coefficients b_ij on links: (links,) float64, 0 for DSGD."""
    routes = view.graph.routes()
    expected = view.algorithm.split.mean(routes).tolist()
    means = dict(zip(ends_of(routes), expected, strict=True))
    return torch.tensor([means[pair] for pair in view.ends(links)], dtype=torch.float64)


def ratios(view: View, links: list[int], at: int) -> Tensor:
    """v_ij / w_ij = x_j - (b_ij / w_ij) s_j on links of one sender: (links, runs, d) float64."""
    messages = view.messages[at][:, links].transpose(0, 1).double()
    return messages / view.weights(links)[:, None, None]


def state_from_messages(view: View, target: int, at: int) -> Tensor:
    """x_j read as the mean of v_ij / w_ij over seen links: exact for DSGD, else off by a share."""
    return ratios(view, view.links_from(target), at).mean(0)


def inflow(view: View, target: int, at: int) -> Tensor:
    """Σ received - Σ sent, all of it seen: x_j^{k+1} = x_j^k - s_j^k + inflow, (runs, d)."""
    received = view.messages[at][:, view.links_to(target)].double().sum(1)
    return received - view.messages[at][:, view.links_from(target)].double().sum(1)


def gradient_of(view: View, target: int, round: int, step: Tensor) -> Tensor:
    """The gradient behind a step: divided by Λ where the adversary knows it, else by its mean."""
    if view.stepsizes is None:
        return step / view.stepsize.mean(round, target)
    stepsizes = view.stepsizes[view.rounds.index(round)][:, target].double()
    return torch.where(stepsizes == 0, 0.0, step / stepsizes)


def rounding_of(view: View, target: int, round: int, size: Tensor) -> Tensor:
    """How much of a gradient rounding can be, where messages of this size were added: (runs, d).

    Each of them is off by half a unit in the last place, once when it is computed and once when it
    is used.
    """
    unit = torch.finfo(view.messages.dtype).eps * size
    return gradient_of(view, target, round, unit).abs()
