"""One link of a chain: what it does, and what it says of itself."""

from abc import ABC, abstractmethod
from dataclasses import fields
from typing import Any, ClassVar, Literal

from torch import Tensor

from sottovoce.graphs import Routes
from sottovoce.mechanisms.flow import Flow
from sottovoce.storage.identity import code_of

Place = Literal["samples", "gradient", "step", "split", "shares", "messages", "state"]
PLACES: tuple[Place, ...] = (
    "samples",
    "gradient",
    "step",
    "split",
    "shares",
    "messages",
    "state",
)
"""Where a part stands in the chain, in the order in which a round passes through it."""


class Part(ABC):
    """What an agent does at one place of the chain; a subclass is a frozen dataclass.

    place: `samples` (a `Bound`, which acts where gradients are computed), `gradient` (alters
    `flow.s` before the stepsizes), `step` (after them), `shares` (alters `flow.shares`), `messages`
    (alters `flow.v`) or `state` (alters `flow.x` after the exchange).
    The properties below are claims; `Mechanism.check` plays the chain and refuses a false one.
    """

    place: ClassVar[Place]
    linear: ClassVar[bool] = False
    """Linear in states, gradients and Gaussian numbers: the accountant knows linear chains only."""
    by_coordinate: ClassVar[bool] = False
    """A coordinate of the result depends on the same coordinate alone, so that blocks suffice."""
    keeps_average: ClassVar[bool] = True
    """The agents' average moves by the mean of the steps Λg, whatever the part draws."""
    additive: ClassVar[bool] = False
    """At `shares`: it adds to them what depends on neither states nor steps, and can take the same
    from what agents receive (`subtract_received`), so that no shares need be made."""
    reach: ClassVar[int] = 0
    """How many rounds back it asks for private numbers again: real agents keep keys that long."""

    @abstractmethod
    def __call__(self, flow: Flow) -> None:
        """Alter the flow in place."""

    def subtract_received(self, flow: Flow, total: Tensor) -> None:
        """Where `additive`: take from `total`, (runs, agents, d), what receivers get less by it.

        Called where noise can be drawn inside a kernel, on a GPU.
        """
        raise NotImplementedError(f"{type(self).__name__} does not add to what agents receive")

    @property
    def options(self) -> dict[str, Any]:
        """The part's own numbers and words, by name."""
        return {one.name: getattr(self, one.name) for one in fields(self)}  # type: ignore[arg-type]

    @property
    def spec(self) -> dict[str, Any]:
        """What decides the part's numbers, as JSON."""
        return {"part": type(self).__name__, **self.options, "code": code_of(type(self))}


class Bound(Part):
    """The part that bounds what one sample contributes to a gradient.

    The gradient of a batch is (1/B) Σ_n c_n g_n with c_n = factors(||g_n||), where the norms are
    those of single samples' gradients and B is the expected batch. Problems and real agents apply
    it while they compute the gradient, so that nothing is left to do in the flow.
    """

    place: ClassVar[Place] = "samples"
    linear: ClassVar[bool] = True
    by_coordinate: ClassVar[bool] = True

    norm: float
    """The most that c_n ||g_n|| can be."""

    @abstractmethod
    def factors(self, norms: Tensor) -> Tensor:
        """What the gradients of samples with these norms are multiplied by, of the same shape."""

    def __call__(self, flow: Flow) -> None:
        """Nothing: the gradients in the flow are bounded already."""


class Split(Part):
    """The part that splits a step into shares, share_ij = b_ij s_j with Σ_i b_ij = 1."""

    place: ClassVar[Place] = "split"
    linear: ClassVar[bool] = True
    by_coordinate: ClassVar[bool] = True

    @property
    def scalar(self) -> bool:
        """Whether one number b_ij serves all coordinates of a link."""
        return True

    @property
    def timeless(self) -> bool:
        """Whether the coefficients follow from private numbers alone, in every round alike.

        Then those of many rounds are computed at once (`Flow.of_rounds`).
        """
        return False

    @abstractmethod
    def coefficients(self, flow: Flow) -> Tensor:
        """The b_ij: (runs, routes, 1) in float64, or (runs, routes, d) where not `scalar`."""

    @abstractmethod
    def mean(self, routes: Routes) -> Tensor:
        """The public mean of the b_ij, in float64: (routes,)."""

    def __call__(self, flow: Flow) -> None:
        coefficients = self.coefficients(flow).to(flow.s.dtype)
        flow.shares = flow.by_route(flow.s).mul_(coefficients)
