"""Triton kernel of Gaussian noise, drawn where it is added: no tensor of noise is stored."""

import triton
import triton.language as tl

from sottovoce.kernels.device.random import blocks


@triton.jit
def normal(tail, upper):
    """The standard normal number with `tail` (at most 1/2) beyond it: above 0 where `upper`.

    Wichura's algorithm AS 241 (1988), to 4e-7 of its value.
    """
    half = 0.5 - tail
    r = 0.180625 - half * half
    inner = half * (
        (((59.109374720 * r + 159.29113202) * r + 50.434271938) * r + 3.3871327179)
        / (((67.187563600 * r + 78.757757664) * r + 17.895169469) * r + 1.0)
    )
    root = tl.sqrt(-tl.log(tail))
    far = root > 5.0
    r = root - tl.where(far, 5.0, 1.6)
    above = tl.where(far, 0.017337203997, 0.17023821103)
    above = above * r + tl.where(far, 0.42868294337, 1.3067284816)
    above = above * r + tl.where(far, 3.0812263860, 2.7568153900)
    above = above * r + tl.where(far, 6.6579051150, 1.4234372777)
    below = tl.where(far, 0.012258202635, 0.12021132975)
    below = below * r + tl.where(far, 0.24197894225, 0.73700164250)
    size = tl.where(half <= 0.425, inner, above / (below * r + 1.0))
    return tl.where(upper, size, -size)


@triton.jit
def _of_single(word):
    """The normal number of a float32 draw: 23 bits and a half step."""
    upper = word >= 0x80000000
    bits = tl.where(upper, word ^ 0xFFFFFFFF, word) >> 9
    return normal((bits.to(tl.float32) + 0.5) * 1.1920928955078125e-07, upper)


@triton.jit
def _of_double(high, low):
    """The normal number of a float64 draw: 52 bits and a half step."""
    upper = high >= 0x80000000
    flip = tl.where(upper, 0xFFFFFFFF, 0).to(tl.uint32)
    tail = ((low ^ flip) >> 12).to(tl.float32) + 0.5
    tail = (high ^ flip).to(tl.float32) * 2.3283064365386963e-10 + tail * 2.220446049250313e-16
    return normal(tail, upper)


@triton.jit(do_not_specialize=["first_run"])
def add_normals(
    rows, starts, keys, rounds, numbers, coefficients, first_run, d, stored, agents,
    DOUBLE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """To rows (runs, agents, d), float32, in place: grid (blocks of counters x agents, runs).

    Agent i gets the sum of the terms from starts[i] to starts[i + 1]: coefficient times the normal
    number with this key, round and number of the counter.
    """
    run = tl.program_id(1).to(tl.int64)
    tiles = tl.cdiv(stored, BLOCK)
    agent = tl.program_id(0) // tiles
    block = (tl.program_id(0) % tiles) * BLOCK + tl.arange(0, BLOCK)
    there = block < stored
    rows += (run * agents + agent) * d
    sum0 = tl.zeros([BLOCK], tl.float32)
    sum1 = tl.zeros([BLOCK], tl.float32)
    sum2 = tl.zeros([BLOCK], tl.float32)
    sum3 = tl.zeros([BLOCK], tl.float32)
    for term in range(tl.load(starts + agent), tl.load(starts + agent + 1)):
        coefficient = tl.load(coefficients + term)
        w0, w1, w2, w3 = blocks(
            tl.load(keys + term), block, tl.load(numbers + term), first_run + run,
            tl.load(rounds + term),
        )  # fmt: skip
        if DOUBLE:
            sum0 += coefficient * _of_double(w0, w1)
            sum1 += coefficient * _of_double(w2, w3)
        else:
            sum0 += coefficient * _of_single(w0)
            sum1 += coefficient * _of_single(w1)
            sum2 += coefficient * _of_single(w2)
            sum3 += coefficient * _of_single(w3)
    LANES: tl.constexpr = 2 if DOUBLE else 4
    for lane in tl.static_range(LANES):
        at = block + lane * stored
        inside = there & (at < d)
        total = sum0 if lane == 0 else sum1 if lane == 1 else sum2 if lane == 2 else sum3
        tl.store(rows + at, tl.load(rows + at, mask=inside) + total, mask=inside)
