"""Triton kernels of the update x <- Wx - B(Λg), Λ drawn where it is used."""

import triton
import triton.language as tl

from sottovoce.kernels.device.random import blocks, to_uniform


@triton.jit(do_not_specialize=["key", "round", "first_run"])
def mix(
    state, gradient, mixing, splitting, bad, key, round, first_run, low, width, d, stored,
    AGENTS: tl.constexpr, DRAWN: tl.constexpr, SPLIT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """In place in `state`, (runs, AGENTS, d) float32: grid (blocks of counters, runs).

    mixing: W, (AGENTS, AGENTS); splitting: B, (runs, AGENTS, AGENTS), unless SPLIT is off, when
    B = I. Λ is `low` + `width` u with u uniform if DRAWN, else `low`. bad: (runs, AGENTS), becomes
    `round` where a new state is not finite and no earlier round is noted.
    """
    run = tl.program_id(1).to(tl.int64)
    block = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = block < stored
    state += run * AGENTS * d
    gradient += run * AGENTS * d
    splitting += run * AGENTS * AGENTS
    weight = ()
    share = ()
    for entry in tl.static_range(AGENTS * AGENTS):
        weight = weight + (tl.load(mixing + entry),)
        if SPLIT:
            share = share + (tl.load(splitting + entry),)
    words = ()
    if DRAWN:
        for agent in tl.static_range(AGENTS):
            words = words + (blocks(key, block, agent, first_run + run, round),)
    sums = ()
    for _ in tl.static_range(AGENTS):
        sums = sums + (tl.zeros([BLOCK], tl.float32),)
    for lane in tl.static_range(4):
        at = block + lane * stored
        inside = there & (at < d)
        x = ()
        s = ()
        for agent in tl.static_range(AGENTS):
            x = x + (tl.load(state + agent * d + at, mask=inside, other=0.0),)
            s = s + (tl.load(gradient + agent * d + at, mask=inside, other=0.0),)
        scaled = ()
        for agent in tl.static_range(AGENTS):
            if DRAWN:
                scaled = scaled + (s[agent] * (to_uniform(words[agent][lane]) * width + low),)
            else:
                scaled = scaled + (s[agent] * low,)
        total = ()
        for i in tl.static_range(AGENTS):
            new = tl.zeros([BLOCK], tl.float32)
            for j in tl.static_range(AGENTS):
                new += weight[i * AGENTS + j] * x[j]
            if SPLIT:
                for j in tl.static_range(AGENTS):
                    new -= share[i * AGENTS + j] * scaled[j]
            else:
                new -= scaled[i]
            tl.store(state + i * d + at, new, mask=inside)
            total = total + (sums[i] + new,)
        sums = total
    for agent in tl.static_range(AGENTS):
        finite = tl.sum(sums[agent] * 0.0) == 0.0
        if not finite:
            tl.atomic_cas(bad + run * AGENTS + agent, tl.zeros([], tl.int32), round)


@triton.jit(do_not_specialize=["round"])
def mix_sparse(
    state, step, out, starts, senders, mixing, splitting, bad, round, scale, units, agents, entries,
    SPLIT: tl.constexpr, AT_ONCE: tl.constexpr, ALIGN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """To `out`, any number of agents, B = I unless SPLIT: grid (blocks x agents, runs).

    Agents run next to one another on the same coordinates, so that what neighbours read of one
    another is in the cache. Agent i's entries of W and of B (runs, entries) are those from
    starts[i] to starts[i + 1], of the agents `senders`; AT_ONCE of them are read together. `scale`
    multiplies the steps; a row has `units` times ALIGN numbers, so that ALIGN are read at once.
    """
    d = units * ALIGN
    run = tl.program_id(1).to(tl.int64)
    agent = tl.program_id(0) % agents
    at = (tl.program_id(0) // agents) * BLOCK + tl.arange(0, BLOCK)
    there = at < d
    first_row = run * agents
    splitting += run * entries
    last = tl.load(starts + agent + 1)
    new = tl.zeros([BLOCK], tl.float32)
    for first in range(tl.load(starts + agent), last, AT_ONCE):
        for offset in tl.static_range(AT_ONCE):
            entry = first + offset
            valid = entry < last
            sender = tl.load(senders + entry, mask=valid, other=0)
            weight = tl.load(mixing + entry, mask=valid, other=0.0)
            row = (first_row + sender) * d
            new += weight * tl.load(state + row + at, mask=there & valid, other=0.0)
            if SPLIT:
                share = tl.load(splitting + entry, mask=valid, other=0.0) * scale
                new -= share * tl.load(step + row + at, mask=there & valid, other=0.0)
    row = (first_row + agent) * d
    if not SPLIT:
        own = tl.load(step + row + at, mask=there, other=0.0, eviction_policy="evict_first")
        new -= scale * own
    tl.store(out + row + at, new, mask=there, eviction_policy="evict_first")
    if tl.sum(tl.where(there, new, 0.0) * 0.0) != 0.0:
        tl.atomic_cas(bad + first_row + agent, tl.zeros([], tl.int32), round)
