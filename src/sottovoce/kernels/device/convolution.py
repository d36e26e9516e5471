"""Triton kernels of 3x3 "same" convolutions with weights of every replica's own.

Images lie channels-last; a program computes 2x2 windows of outputs, four accumulators at once, so
that 16 loads of shifted inputs serve 36 matrix products and a max pool needs no second pass.
Patches are never stored.
"""

import triton
import triton.language as tl

from sottovoce.kernels.device.pointwise import activate, slope


@triton.jit
def windows(first, count, H: tl.constexpr, W: tl.constexpr, BLOCK: tl.constexpr):
    """Image, row and column of the top left output of each 2x2 window, and which windows exist."""
    m = first + tl.arange(0, BLOCK)
    image = m // ((H // 2) * (W // 2))
    rest = m % ((H // 2) * (W // 2))
    return image, 2 * (rest // (W // 2)), 2 * (rest % (W // 2)), m < count


@triton.jit
def _store_pooled(
    acc00, acc01, acc10, acc11, bias, out, index, image, y, x, inside,
    H: tl.constexpr, W: tl.constexpr, COUT: tl.constexpr, ACT: tl.constexpr, FLAT: tl.constexpr,
):  # fmt: skip
    """Largest of each window, its place (0 to 3) beside it; FLAT stores channels outermost."""
    best = acc00
    place = tl.zeros_like(acc00).to(tl.int32)
    place = tl.where(acc01 > best, 1, place)
    best = tl.maximum(acc01, best)
    place = tl.where(acc10 > best, 2, place)
    best = tl.maximum(acc10, best)
    place = tl.where(acc11 > best, 3, place)
    best = tl.maximum(acc11, best)
    a = activate(best + bias[None, :], ACT)
    channel = tl.arange(0, COUT)
    pixel = (y // 2) * (W // 2) + x // 2
    area: tl.constexpr = (H // 2) * (W // 2)
    if FLAT:
        at = (image * (area * COUT) + pixel)[:, None] + channel[None, :] * area
    else:
        at = ((image * area + pixel) * COUT)[:, None] + channel[None, :]
    tl.store(out + at, a.to(out.dtype.element_ty), mask=inside[:, None])
    tl.store(index + at, place.to(tl.uint8), mask=inside[:, None])


@triton.jit
def _store_window(
    acc00, acc01, acc10, acc11, bias, out, image, y, x, inside,
    H: tl.constexpr, W: tl.constexpr, COUT: tl.constexpr, ACT: tl.constexpr, FLAT: tl.constexpr,
):  # fmt: skip
    channel = tl.arange(0, COUT)
    for part in tl.static_range(4):
        acc = acc00 if part == 0 else acc01 if part == 1 else acc10 if part == 2 else acc11
        a = activate(acc + bias[None, :], ACT)
        pixel = (y + part // 2) * W + x + part % 2
        if FLAT:
            at = (image * (H * W * COUT) + pixel)[:, None] + channel[None, :] * (H * W)
        else:
            at = ((image * (H * W) + pixel) * COUT)[:, None] + channel[None, :]
        tl.store(out + at, a.to(out.dtype.element_ty), mask=inside[:, None])


@triton.jit
def _store_slope(
    summed, acc00, acc01, acc10, acc11, lower, out, image, y, x, inside,
    H: tl.constexpr, W: tl.constexpr, COUT: tl.constexpr, ACT: tl.constexpr, TOTAL: tl.constexpr,
):  # fmt: skip
    """Gradients with respect to the lower layer's sums; adds them to `summed`."""
    channel = tl.arange(0, COUT)
    for part in tl.static_range(4):
        acc = acc00 if part == 0 else acc01 if part == 1 else acc10 if part == 2 else acc11
        pixel = (y + part // 2) * W + x + part % 2
        at = ((image * (H * W) + pixel) * COUT)[:, None] + channel[None, :]
        a = tl.load(lower + at, mask=inside[:, None], other=0.0).to(tl.float32)
        g = tl.where(inside[:, None], acc * slope(a, ACT), 0.0)
        tl.store(out + at, g.to(out.dtype.element_ty), mask=inside[:, None])
        if TOTAL:
            summed += g
    return summed


@triton.jit
def _store_unpooled(
    summed, acc00, acc01, acc10, acc11, lower, index, out, image, y, x, inside,
    H: tl.constexpr, W: tl.constexpr, COUT: tl.constexpr, ACT: tl.constexpr, TOTAL: tl.constexpr,
):  # fmt: skip
    """As `_store_slope` where the lower layer ends in a max pool: its map is (2H, 2W)."""
    channel = tl.arange(0, COUT)
    for part in tl.static_range(4):
        acc = acc00 if part == 0 else acc01 if part == 1 else acc10 if part == 2 else acc11
        row = y + part // 2
        column = x + part % 2
        at = ((image * (H * W) + row * W + column) * COUT)[:, None] + channel[None, :]
        a = tl.load(lower + at, mask=inside[:, None], other=0.0).to(tl.float32)
        place = tl.load(index + at, mask=inside[:, None], other=0).to(tl.int32)
        g = tl.where(inside[:, None], acc * slope(a, ACT), 0.0)
        if TOTAL:
            summed += g
        wide = (image * (4 * H * W) + 4 * row * W + 2 * column) * COUT
        for to in tl.static_range(4):
            offset = ((to // 2) * 2 * W + to % 2) * COUT
            value = tl.where(place == to, g, 0.0).to(out.dtype.element_ty)
            tl.store(out + wide[:, None] + offset + channel[None, :], value, mask=inside[:, None])
    return summed


@triton.jit
def _input(
    x, corner, y, xx, inside, tap: tl.constexpr,
    H: tl.constexpr, W: tl.constexpr, CIN: tl.constexpr,
):  # fmt: skip
    """One of the 4x4 inputs of the windows, by rows: (windows, CIN), zero beyond the border."""
    there = inside
    if tap // 4 == 0:
        there = there & (y > 0)
    if tap // 4 == 3:
        there = there & (y < H - 2)
    if tap % 4 == 0:
        there = there & (xx > 0)
    if tap % 4 == 3:
        there = there & (xx < W - 2)
    at = corner[:, None] + ((tap // 4) * W + tap % 4) * CIN + tl.arange(0, CIN)[None, :]
    return tl.load(x + at, mask=there[:, None], other=0.0)


@triton.jit
def convolve(
    x, weight, bias, lower, index, out, total, images,
    bias_stride, x_stride, out_stride, lower_stride,
    H: tl.constexpr, W: tl.constexpr, CIN: tl.constexpr, COUT: tl.constexpr,
    ACT: tl.constexpr, POOL: tl.constexpr, BACKWARD: tl.constexpr, FLAT: tl.constexpr,
    TOTAL: tl.constexpr, PRECISION: tl.constexpr, BLOCK: tl.constexpr, TILES: tl.constexpr,
    AHEAD: tl.constexpr,
):  # fmt: skip
    """A convolution and what follows it: grid (blocks of windows, replicas).

    AHEAD inputs are on their way while one is multiplied.

    weight: (replicas, 9, CIN, COUT). Forward: bias, activation, max pool if POOL, whose places go
    to `index`. Backward (weights flipped and transposed by the caller): times the slope of the
    lower layer's outputs `lower`, spread over its pool's windows if POOL; with TOTAL the sum over
    pixels goes to `total` (replicas, programs, COUT).
    """
    replica = tl.program_id(1).to(tl.int64)
    x += replica * x_stride
    out += replica * out_stride
    weight += replica * (9 * CIN * COUT)
    row = tl.arange(0, CIN)
    column = tl.arange(0, COUT)
    tile = weight + row[:, None] * COUT + column[None, :]
    w0 = tl.load(tile)
    w1 = tl.load(tile + CIN * COUT)
    w2 = tl.load(tile + 2 * CIN * COUT)
    w3 = tl.load(tile + 3 * CIN * COUT)
    w4 = tl.load(tile + 4 * CIN * COUT)
    w5 = tl.load(tile + 5 * CIN * COUT)
    w6 = tl.load(tile + 6 * CIN * COUT)
    w7 = tl.load(tile + 7 * CIN * COUT)
    w8 = tl.load(tile + 8 * CIN * COUT)
    w = (w0, w1, w2, w3, w4, w5, w6, w7, w8)
    if BACKWARD:
        lower += replica * lower_stride
        if POOL:
            index += replica * lower_stride
        summed = tl.zeros([BLOCK, COUT], tl.float32)
    else:
        shift = tl.load(bias + replica * bias_stride + column).to(tl.float32)
        if POOL:
            index += replica * out_stride
    count = images * ((H // 2) * (W // 2))
    for step in range(TILES):
        first = (tl.program_id(0) * TILES + step) * BLOCK
        image, y, xx, inside = windows(first, count, H, W, BLOCK)
        corner = ((image * H + y - 1) * W + xx - 1) * CIN
        acc00 = tl.zeros([BLOCK, COUT], tl.float32)
        acc01 = tl.zeros([BLOCK, COUT], tl.float32)
        acc10 = tl.zeros([BLOCK, COUT], tl.float32)
        acc11 = tl.zeros([BLOCK, COUT], tl.float32)
        loaded = ()
        for tap in tl.static_range(AHEAD):
            loaded = loaded + (_input(x, corner, y, xx, inside, tap, H, W, CIN),)
        for tap in tl.static_range(16):
            if tap + AHEAD < 16:
                loaded = loaded + (_input(x, corner, y, xx, inside, tap + AHEAD, H, W, CIN),)
            a = loaded[tap]
            if tap // 4 < 3 and tap % 4 < 3:
                acc00 = tl.dot(a, w[(tap // 4) * 3 + tap % 4], acc00, input_precision=PRECISION)
            if tap // 4 < 3 and tap % 4 > 0:
                acc01 = tl.dot(a, w[(tap // 4) * 3 + tap % 4 - 1], acc01, input_precision=PRECISION)
            if tap // 4 > 0 and tap % 4 < 3:
                acc10 = tl.dot(a, w[(tap // 4) * 3 + tap % 4 - 3], acc10, input_precision=PRECISION)
            if tap // 4 > 0 and tap % 4 > 0:
                acc11 = tl.dot(a, w[(tap // 4) * 3 + tap % 4 - 4], acc11, input_precision=PRECISION)
        if BACKWARD:
            if POOL:
                summed = _store_unpooled(
                    summed,
                    acc00, acc01, acc10, acc11, lower, index, out, image, y, xx, inside,
                    H, W, COUT, ACT, TOTAL,
                )  # fmt: skip
            else:
                summed = _store_slope(
                    summed, acc00, acc01, acc10, acc11, lower, out, image, y, xx, inside,
                    H, W, COUT, ACT, TOTAL,
                )  # fmt: skip
        elif POOL:
            _store_pooled(
                acc00, acc01, acc10, acc11, shift, out, index, image, y, xx, inside,
                H, W, COUT, ACT, FLAT,
            )  # fmt: skip
        else:
            _store_window(
                acc00, acc01, acc10, acc11, shift, out, image, y, xx, inside, H, W, COUT, ACT, FLAT
            )
    if BACKWARD and TOTAL:
        at = replica * tl.num_programs(0) + tl.program_id(0)
        tl.store(total + at * COUT + column, tl.sum(summed, 0))


@triton.jit
def convolve_first(
    x, weight, bias, index, out, images, weight_stride, bias_stride, x_stride, out_stride,
    H: tl.constexpr, W: tl.constexpr, CIN: tl.constexpr, COUT: tl.constexpr, TAPS: tl.constexpr,
    ACT: tl.constexpr, POOL: tl.constexpr, FLAT: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The first layer, whose few channels lie outermost: all taps are one padded product.

    x: (replicas, images, CIN, H, W); weight: torch's own order (COUT, CIN, 3, 3), float32.
    """
    replica = tl.program_id(1).to(tl.int64)
    x += replica * x_stride
    out += replica * out_stride
    if POOL:
        index += replica * out_stride
    tap = tl.arange(0, TAPS)
    column = tl.arange(0, COUT)
    used = tap < 9 * CIN
    at = replica * weight_stride + column[None, :] * (9 * CIN) + tap[:, None]
    w = tl.load(weight + at, mask=used[:, None], other=0.0).to(x.dtype.element_ty)
    shift = tl.load(bias + replica * bias_stride + column).to(tl.float32)
    image, y, xx, inside = windows(
        tl.program_id(0) * BLOCK, images * ((H // 2) * (W // 2)), H, W, BLOCK
    )
    zero = tl.zeros([BLOCK, COUT], tl.float32)
    acc00 = tl.dot(patch(x, image, y, xx, inside, tap, used, H, W, CIN), w, zero,
                   input_precision=PRECISION)  # fmt: skip
    acc01 = tl.dot(patch(x, image, y, xx + 1, inside, tap, used, H, W, CIN), w, zero,
                   input_precision=PRECISION)  # fmt: skip
    acc10 = tl.dot(patch(x, image, y + 1, xx, inside, tap, used, H, W, CIN), w, zero,
                   input_precision=PRECISION)  # fmt: skip
    acc11 = tl.dot(patch(x, image, y + 1, xx + 1, inside, tap, used, H, W, CIN), w, zero,
                   input_precision=PRECISION)  # fmt: skip
    if POOL:
        _store_pooled(
            acc00, acc01, acc10, acc11, shift, out, index, image, y, xx, inside,
            H, W, COUT, ACT, FLAT,
        )  # fmt: skip
    else:
        _store_window(
            acc00, acc01, acc10, acc11, shift, out, image, y, xx, inside, H, W, COUT, ACT, FLAT
        )


@triton.jit
def patch(x, image, y, xx, inside, tap, used, H: tl.constexpr, W: tl.constexpr, CIN: tl.constexpr):
    """The 3x3 neighbourhoods of pixels as rows (pixels, TAPS), zero beyond the border."""
    row = y[:, None] + ((tap % 9) // 3 - 1)[None, :]
    column = xx[:, None] + (tap % 3 - 1)[None, :]
    there = inside[:, None] & used[None, :] & (row >= 0) & (row < H) & (column >= 0) & (column < W)
    at = (image[:, None] * CIN + (tap // 9)[None, :]) * (H * W) + row * W + column
    return tl.load(x + at, mask=there, other=0.0)
