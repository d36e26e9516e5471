"""Where private numbers come from: a stream cipher, or a fast generator for studies on a GPU."""

from collections.abc import Sequence

import torch

from sottovoce.errors import SottovoceError
from sottovoce.randomness.ahead import Ahead
from sottovoce.randomness.cipher import CipherStreams
from sottovoce.randomness.device import DeviceStreams
from sottovoce.randomness.streams import (
    InsecureSeedWarning,
    RoundsAsRuns,
    Streams,
    require_jitter,
    warn_about_seed,
)

__all__ = [
    "Ahead",
    "CipherStreams",
    "DeviceStreams",
    "InsecureSeedWarning",
    "RoundsAsRuns",
    "Streams",
    "private_streams",
    "require_jitter",
    "warn_about_seed",
]


def private_streams(
    runs: int | range,
    agents: int | Sequence[int],
    *,
    insecure_seed: int | None = None,
    device: torch.device | str = "cpu",
) -> Streams:
    """Streams keyed by the operating system, or by `insecure_seed` for a study to be repeated.

    On a GPU the simulator draws from a Philox generator instead of the cipher: fast, but no
    protection against prediction. A simulator holds every agent's secrets in one process
    anyway; an agent of its own (`sottovoce.distributed`) always uses the cipher.
    """
    device = torch.device(device)
    runs = range(runs) if isinstance(runs, int) else runs
    agents = range(agents) if isinstance(agents, int) else agents
    if insecure_seed is not None and not isinstance(insecure_seed, int):
        raise SottovoceError(f"insecure_seed is {insecure_seed!r}; accepted: a whole number")
    if device.type == "cpu":
        return CipherStreams(runs, agents, insecure_seed)
    return DeviceStreams(runs, agents, insecure_seed, device)
