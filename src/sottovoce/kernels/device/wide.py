"""The Triton kernel of 3x3 "same" convolutions with few channels: fewer and larger products."""

import triton
import triton.language as tl

from sottovoce.kernels.device.convolution import windows
from sottovoce.kernels.device.pointwise import activate, slope


@triton.jit
def _split(acc, BLOCK: tl.constexpr, COUT: tl.constexpr):
    """The columns of the left and of the right output of a pair."""
    return tl.split(tl.permute(tl.reshape(acc, [BLOCK, 2, COUT]), [0, 2, 1]))


@triton.jit
def _input_row(
    at, there, y, row: tl.constexpr, H: tl.constexpr, W: tl.constexpr, CIN: tl.constexpr
):
    """One of the four rows of neighbouring inputs: (windows, 4 CIN), zero beyond the border."""
    if row == 0:
        there = there & (y > 0)[:, None]
    if row == 3:
        there = there & (y < H - 2)[:, None]
    return tl.load(at + row * (W * CIN), mask=there, other=0.0)


@triton.jit
def convolve_wide(
    x, weight, bias, lower, index, out, total, images,
    bias_stride, x_stride, out_stride, lower_stride,
    H: tl.constexpr, W: tl.constexpr, CIN: tl.constexpr, COUT: tl.constexpr,
    ACT: tl.constexpr, POOL: tl.constexpr, BACKWARD: tl.constexpr, FLAT: tl.constexpr,
    TOTAL: tl.constexpr, PRECISION: tl.constexpr, BLOCK: tl.constexpr, TILES: tl.constexpr,
    AHEAD: tl.constexpr,
):  # fmt: skip
    """`convolve` with fewer and larger products, for few channels.

    Four neighbouring inputs meet two neighbouring outputs in one product; weight:
    (replicas, 3, 4 CIN, 2 COUT), a quarter of it zeros.
    """
    replica = tl.program_id(1).to(tl.int64)
    x += replica * x_stride
    out += replica * out_stride
    weight += replica * (24 * CIN * COUT)
    row = tl.arange(0, 4 * CIN)
    column = tl.arange(0, 2 * COUT)
    channel = tl.arange(0, COUT)
    tile = weight + row[:, None] * (2 * COUT) + column[None, :]
    w0 = tl.load(tile)
    w1 = tl.load(tile + 8 * CIN * COUT)
    w2 = tl.load(tile + 16 * CIN * COUT)
    w = (w0, w1, w2)
    if BACKWARD:
        lower += replica * lower_stride
        if POOL:
            index += replica * lower_stride
        summed = tl.zeros([BLOCK, 2 * COUT], tl.float32)
    else:
        shift = tl.load(bias + replica * bias_stride + column % COUT).to(tl.float32)
        if POOL:
            index += replica * out_stride
    count = images * ((H // 2) * (W // 2))
    for step in range(TILES):
        first = (tl.program_id(0) * TILES + step) * BLOCK
        image, y, xx, inside = windows(first, count, H, W, BLOCK)
        at = x + (((image * H + y - 1) * W + xx - 1) * CIN)[:, None] + row[None, :]
        there = (
            inside[:, None]
            & ((row >= CIN)[None, :] | (xx > 0)[:, None])
            & ((row < 3 * CIN)[None, :] | (xx < W - 2)[:, None])
        )
        above = tl.zeros([BLOCK, 2 * COUT], tl.float32)
        below = tl.zeros([BLOCK, 2 * COUT], tl.float32)
        loaded = ()
        for line in tl.static_range(AHEAD):
            loaded = loaded + (_input_row(at, there, y, line, H, W, CIN),)
        for line in tl.static_range(4):
            if line + AHEAD < 4:
                loaded = loaded + (_input_row(at, there, y, line + AHEAD, H, W, CIN),)
            a = loaded[line]
            if line < 3:
                above = tl.dot(a, w[line], above, input_precision=PRECISION)
            if line > 0:
                below = tl.dot(a, w[line - 1], below, input_precision=PRECISION)
        if BACKWARD:
            for part in tl.static_range(2):
                acc = above if part == 0 else below
                pixel = image * (H * W) + (y + part) * W + xx
                to = (pixel * COUT)[:, None] + column[None, :]
                a = tl.load(lower + to, mask=inside[:, None], other=0.0).to(tl.float32)
                g = tl.where(inside[:, None], acc * slope(a, ACT), 0.0)
                if TOTAL:
                    summed += g
                if POOL:
                    place = tl.load(index + to, mask=inside[:, None], other=0).to(tl.int32)
                    wide = (image * (4 * H * W) + 4 * (y + part) * W + 2 * xx) * COUT
                    for where in tl.static_range(4):
                        offset = (where // 2) * 2 * W * COUT + (where % 2) * COUT
                        spread = offset + column + (column // COUT) * COUT
                        value = tl.where(place == where, g, 0.0).to(out.dtype.element_ty)
                        tl.store(out + wide[:, None] + spread[None, :], value, mask=inside[:, None])
                else:
                    tl.store(out + to, g.to(out.dtype.element_ty), mask=inside[:, None])
        elif POOL:
            place = tl.where(below > above, 2, 0)
            left, right = _split(tl.maximum(above, below), BLOCK, COUT)
            left_place, right_place = _split(place, BLOCK, COUT)
            best = tl.maximum(left, right)
            # Of equal entries the first by rows, as torch has it.
            later = (right > left) | ((right == left) & (right_place < left_place))
            place = tl.where(later, right_place + 1, left_place)
            bias_here = tl.load(bias + replica * bias_stride + channel).to(tl.float32)
            a = activate(best + bias_here[None, :], ACT)
            area: tl.constexpr = (H // 2) * (W // 2)
            pixel = (y // 2) * (W // 2) + xx // 2
            if FLAT:
                to = (image * (area * COUT) + pixel)[:, None] + channel[None, :] * area
            else:
                to = ((image * area + pixel) * COUT)[:, None] + channel[None, :]
            tl.store(out + to, a.to(out.dtype.element_ty), mask=inside[:, None])
            tl.store(index + to, place.to(tl.uint8), mask=inside[:, None])
        else:
            for part in tl.static_range(2):
                acc = above if part == 0 else below
                a = activate(acc + shift[None, :], ACT).to(out.dtype.element_ty)
                pixel = (y + part) * W + xx
                if FLAT:
                    to = (image * (H * W * COUT) + pixel)[:, None] + (
                        (column % COUT) * (H * W) + column // COUT
                    )[None, :]
                else:
                    to = ((image * (H * W) + pixel) * COUT)[:, None] + column[None, :]
                tl.store(out + to, a, mask=inside[:, None])
    if BACKWARD and TOTAL:
        at = replica * tl.num_programs(0) + tl.program_id(0)
        both = tl.sum(tl.reshape(tl.sum(summed, 0), [2, COUT]), 0)
        tl.store(total + at * COUT + channel, both)
