"""Triton kernels that draw numbers of a counter-based generator (Philox 4x32, ten rounds).

Number i of a row of n float32 numbers is word i // q of the block with counter
(i mod q, agent, run, round), q = ceil(n / 4): a program draws neighbouring blocks, and each of
their four words belongs to neighbouring numbers.
"""

import triton
import triton.language as tl


@triton.jit
def to_uniform(word):
    """A number in [0, 1): the word's upper 23 bits behind the point."""
    return (word >> 9).to(tl.float32) * 1.1920928955078125e-07


@triton.jit
def blocks(key, block, agent, run, round):
    """Four random words for each counter."""
    zero = block * 0
    return tl.philox(key, block.to(tl.uint32), (zero + agent).to(tl.uint32),
                     (zero + run).to(tl.uint32), (zero + round).to(tl.uint32))  # fmt: skip


@triton.jit(do_not_specialize=["key", "round", "first_run"])
def fill(
    out, key, round, first_run, agents, count, stored,
    AGENTS: tl.constexpr, DOUBLE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Rows of `count` uniform numbers: grid (runs x agents, blocks of counters).

    agents: a pointer to the agents' numbers.
    """
    row = tl.program_id(0)
    block = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    agent = tl.load(agents + row % AGENTS)
    w0, w1, w2, w3 = blocks(key, block, agent, first_run + row // AGENTS, round)
    out += row.to(tl.int64) * count
    there = block < stored
    if DOUBLE:
        high = ((w0.to(tl.uint64) << 32) | w1.to(tl.uint64)) >> 12
        low = ((w2.to(tl.uint64) << 32) | w3.to(tl.uint64)) >> 12
        tl.store(out + block, high.to(tl.float64) * 2.220446049250313e-16, mask=there)
        second = block + stored
        tl.store(out + second, low.to(tl.float64) * 2.220446049250313e-16,
                 mask=there & (second < count))  # fmt: skip
    else:
        for lane in tl.static_range(4):
            word = w0 if lane == 0 else w1 if lane == 1 else w2 if lane == 2 else w3
            at = block + lane * stored
            tl.store(out + at, to_uniform(word), mask=there & (at < count))


@triton.jit(do_not_specialize=["key", "round", "first_run"])
def scale(
    rows, key, round, first_run, agents, low, width, count, stored,
    AGENTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Multiply float32 rows of `count` by low + width u, u as `fill` draws it.

    Grid (runs x agents x blocks of counters): programs that run together share a row.
    """
    tiles = tl.cdiv(stored, BLOCK)
    row = tl.program_id(0) // tiles
    block = (tl.program_id(0) % tiles) * BLOCK + tl.arange(0, BLOCK)
    agent = tl.load(agents + row % AGENTS)
    words = blocks(key, block, agent, first_run + row // AGENTS, round)
    rows += row.to(tl.int64) * count
    for lane in tl.static_range(4):
        at = block + lane * stored
        inside = (block < stored) & (at < count)
        factor = to_uniform(words[lane]) * width + low
        tl.store(rows + at, tl.load(rows + at, mask=inside) * factor, mask=inside)
