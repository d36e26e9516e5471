"""The Triton kernel of the update x <- Wx - B(Λg), Λ drawn where it is used."""

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
