"""How a simulation is run and what is kept of it."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from torch import Tensor

from sottovoce.errors import SimulationError
from sottovoce.simulation.transcript import Recording
from sottovoce.storage.store import Store

Links = Literal["plain", "masked"]


@dataclass(frozen=True)
class Options:
    """What `simulate` measures, records and keeps.

    measure: after which rounds to measure, 0 being the start; about 100 rounds on a logarithmic
    scale unless given. record: rounds and runs whose messages to keep. checkpoint: a folder, or its
    `Store`, from which an interrupted call with the same arguments, data and code continues; with
    `insecure_seed` it ends with the same numbers as an undisturbed one. private_start: standard
    deviation of private Gaussian numbers that every agent adds to its starting point; with 0 an
    observer who knows that point reads a share of the first step off a single message. exact:
    compute message by message, as real agents do, to the same bits as `sottovoce.distributed`;
    otherwise a faster equivalent serves. keep_final: whether the result holds the last states;
    without, its `final` has no coordinates. watch: called with each measured round and what was
    measured; what it raises ends the simulation. links: "masked" computes message by message in the
    fixed point of masked links, to the same bits as real agents with such links.
    """

    measure: Collection[int] | None = None
    record: Recording | None = None
    checkpoint: Store | str | Path | None = None
    private_start: float = 0.0
    exact: bool = False
    keep_final: bool = True
    progress: bool = False
    watch: Callable[[int, Mapping[str, Tensor]], None] | None = None
    links: Links = "plain"

    def __post_init__(self) -> None:
        if self.links not in get_args(Links):
            accepted = ", ".join(get_args(Links))
            raise SimulationError(f"links is {self.links!r}; accepted: {accepted}")
