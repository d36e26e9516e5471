"""A counter-based generator for the simulator's draws on a GPU: Philox 4x32 with ten rounds.

Random words are a function of a 64-bit key and a counter (block, agent, run, round) (Salmon et al.
2011, "Parallel random numbers: as easy as 1, 2, 3"), so that any number can be had anywhere without
those before it. A block holds p = 4 float32 or 2 float64 numbers; number i of a row of n is number
i // q of block i mod q, q = ceil(n / p).
"""

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from sottovoce.kernels import usable

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_WORD = 0xFFFFFFFF
_BLOCK = 256


def words(counter: Sequence[Tensor], key: int) -> tuple[Tensor, ...]:
    """The four random words of each counter, as int64 tensors with values below 2**32."""
    c0, c1, c2, c3 = counter
    k0, k1 = key & _WORD, (key >> 32) & _WORD
    for _ in range(10):
        high0, low0 = _product(c0, _MULTIPLIERS[0])
        high1, low1 = _product(c2, _MULTIPLIERS[1])
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + _KEY_STEPS[0]) & _WORD, (k1 + _KEY_STEPS[1]) & _WORD
    return c0, c1, c2, c3


def uniform(
    runs: range,
    agents: Sequence[int],
    count: int,
    dtype: torch.dtype,
    key: int,
    round: int,
    device: torch.device,
) -> Tensor:
    """`count` numbers in [0, 1) for each run and agent: (runs, agents, count)."""
    stored, agent = blocks(count, dtype), _numbers(_fixed(agents), device)
    if usable(device):
        from sottovoce.kernels.device.random import fill

        out = torch.empty(len(runs), len(agents), count, dtype=dtype, device=device)
        grid = (len(runs) * len(agents), -(-stored // _BLOCK))
        double, sizes = dtype == torch.float64, (count, stored, len(agents))
        fill[grid](out, key, round, runs.start, agent, *sizes, double, _BLOCK)
        return out
    run = torch.arange(runs.start, runs.stop, device=device)[:, None, None]
    agent = agent[:, None]
    counter = (torch.arange(stored, device=device), agent, run, torch.tensor(round, device=device))
    found = words(torch.broadcast_tensors(*counter), key)
    if dtype == torch.float32:
        numbers = [(word >> 9).to(dtype) * 2.0**-23 for word in found]
    else:
        pairs = (found[:2], found[2:])
        numbers = [(high << 20 | low >> 12).to(dtype) * 2.0**-52 for high, low in pairs]
    return torch.cat(numbers, -1)[..., :count].contiguous()


def scale_(
    rows: Tensor,
    runs: range,
    agents: Sequence[int],
    interval: tuple[float, float],
    key: int,
    round: int,
) -> None:
    """Multiply `rows`, (runs, agents, count) float32 where kernels run, by numbers on an interval.

    They are those of `uniform`, drawn inside the kernel.
    """
    from sottovoce.kernels.device.random import scale

    (low, high), count = interval, rows.shape[-1]
    stored = blocks(count, rows.dtype)
    grid = (rows.shape[0] * rows.shape[1] * -(-stored // _BLOCK),)
    scale[grid](
        rows, key, round, runs.start, _numbers(_fixed(agents), rows.device), low, high - low,
        count, stored, len(agents), _BLOCK,
    )  # fmt: skip


@lru_cache(maxsize=256)
def _numbers(agents: range | tuple[int, ...], device: torch.device) -> Tensor:
    """The agents' numbers on a device, copied there once."""
    if isinstance(agents, range):
        return torch.arange(agents.start, agents.stop, agents.step, device=device)
    return torch.tensor(agents, device=device)


def _fixed(agents: Sequence[int]) -> range | tuple[int, ...]:
    """What can be remembered."""
    return agents if isinstance(agents, range) else tuple(agents)


def blocks(count: int, dtype: torch.dtype) -> int:
    """How many counters a row of `count` numbers takes."""
    return -(-count // (16 // dtype.itemsize))


def _product(word: Tensor, factor: int) -> tuple[Tensor, Tensor]:
    """Upper and lower half of a 32 x 32 bit product; int64 would overflow, so in two parts."""
    low = word * (factor & 0xFFFF)
    high = word * (factor >> 16) + (low >> 16)
    return high >> 16, (high << 16 | low & 0xFFFF) & _WORD
