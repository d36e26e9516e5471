"""Triton kernels of the gradients with respect to weights, straight into flat rows."""

import triton
import triton.language as tl

from sottovoce.kernels.device.convolution import patch


@triton.jit
def weight_gradient(
    x, dz, grad, images, x_stride, dz_stride, grad_stride,
    H: tl.constexpr, W: tl.constexpr, CIN: tl.constexpr, COUT: tl.constexpr, WIDE: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """dW[o, i, dy, dx] = Σ dz[y, x, o] input[y + dy - 1, x + dx - 1, i]: grid (3, replicas).

    A program computes the three taps of one dy from pairs of horizontal neighbours: four inputs
    serve two outputs. WIDE takes both outputs as one product of 2 COUT rows, which fills the matrix
    unit where COUT is 32; two of its eight blocks are not needed.
    """
    dy = tl.program_id(0)
    replica = tl.program_id(1).to(tl.int64)
    x += replica * x_stride
    dz += replica * dz_stride
    ci = tl.arange(0, CIN)
    co = tl.arange(0, COUT)
    both = tl.arange(0, 2 * COUT)
    ROWS: tl.constexpr = 2 * COUT if WIDE else COUT
    acc0 = tl.zeros([ROWS, CIN], tl.float32)
    acc1 = tl.zeros([ROWS, CIN], tl.float32)
    acc2 = tl.zeros([ROWS, CIN], tl.float32)
    acc3 = tl.zeros([ROWS, CIN], tl.float32)
    count = images * (H * W // 2)
    for first in range(0, count, BLOCK):
        m = first + tl.arange(0, BLOCK)
        y = (m // (W // 2)) % H
        left = 2 * (m % (W // 2))
        inside = m < count
        there = inside & (y + dy > 0) & (y + dy <= H)
        corner = (2 * m + (dy - 1) * W - 1) * CIN
        at = x + corner[:, None] + ci[None, :]
        a0 = tl.load(at, mask=(there & (left > 0))[:, None], other=0.0)
        a1 = tl.load(at + CIN, mask=there[:, None], other=0.0)
        a2 = tl.load(at + 2 * CIN, mask=there[:, None], other=0.0)
        a3 = tl.load(at + 3 * CIN, mask=(there & (left < W - 2))[:, None], other=0.0)
        if WIDE:
            d = tl.load(
                dz + (2 * m * COUT)[:, None] + both[None, :], mask=inside[:, None], other=0.0
            )
            dt = tl.trans(d)
            acc0 = tl.dot(dt, a0, acc0, input_precision=PRECISION)
            acc1 = tl.dot(dt, a1, acc1, input_precision=PRECISION)
            acc2 = tl.dot(dt, a2, acc2, input_precision=PRECISION)
            acc3 = tl.dot(dt, a3, acc3, input_precision=PRECISION)
        else:
            from_ = dz + (2 * m * COUT)[:, None] + co[None, :]
            d0 = tl.trans(tl.load(from_, mask=inside[:, None], other=0.0))
            d1 = tl.trans(tl.load(from_ + COUT, mask=inside[:, None], other=0.0))
            acc0 = tl.dot(d0, a0, acc0, input_precision=PRECISION)
            acc1 = tl.dot(d0, a1, acc1, input_precision=PRECISION)
            acc2 = tl.dot(d0, a2, acc2, input_precision=PRECISION)
            acc0 = tl.dot(d1, a1, acc0, input_precision=PRECISION)
            acc1 = tl.dot(d1, a2, acc1, input_precision=PRECISION)
            acc2 = tl.dot(d1, a3, acc2, input_precision=PRECISION)
    if WIDE:
        left0, _ = _halves(acc0, COUT, CIN)
        left1, right1 = _halves(acc1, COUT, CIN)
        left2, right2 = _halves(acc2, COUT, CIN)
        _, right3 = _halves(acc3, COUT, CIN)
        acc0 = left0 + right1
        acc1 = left1 + right2
        acc2 = left2 + right3
    grad += replica * grad_stride + dy * 3
    to = grad + co[:, None] * (9 * CIN) + ci[None, :] * 9
    tl.store(to, acc0)
    tl.store(to + 1, acc1)
    tl.store(to + 2, acc2)


@triton.jit
def _halves(acc, COUT: tl.constexpr, CIN: tl.constexpr):
    """The rows of the left and of the right output of a pair."""
    return tl.split(tl.permute(tl.reshape(acc, [2, COUT, CIN]), [1, 2, 0]))


@triton.jit
def first_weight_gradient(
    x, dz, partial, images, x_stride, dz_stride,
    H: tl.constexpr, W: tl.constexpr, CIN: tl.constexpr, COUT: tl.constexpr, TAPS: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The first layer's weight gradient, (replicas, parts, COUT, TAPS): grid (parts, replicas).

    Behind the weights' own taps stands the bias's, whose input is 1.
    """
    part = tl.program_id(0)
    parts = tl.num_programs(0)
    replica = tl.program_id(1).to(tl.int64)
    x += replica * x_stride
    dz += replica * dz_stride
    tap = tl.arange(0, TAPS)
    co = tl.arange(0, COUT)
    used = tap < 9 * CIN
    acc = tl.zeros([COUT, TAPS], tl.float32)
    count = images * (H * W)
    for first in range(part * BLOCK, count, parts * BLOCK):
        m = first + tl.arange(0, BLOCK)
        inside = m < count
        image = m // (H * W)
        y = (m % (H * W)) // W
        a = patch(x, image, y, m % W, inside, tap, used, H, W, CIN)
        a = tl.where((tap == 9 * CIN)[None, :], 1.0, a).to(dz.dtype.element_ty)
        d = tl.load(dz + (m * COUT)[:, None] + co[None, :], mask=inside[:, None], other=0.0)
        acc = tl.dot(tl.trans(d), a, acc, input_precision=PRECISION)
    at = ((replica * parts + part) * COUT + co[:, None]) * TAPS + tap[None, :]
    tl.store(partial + at, acc)


@triton.jit
def outer(
    left, right, out, samples, out_stride,
    N: tl.constexpr, K: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A dense layer's weight gradient, out = leftᵀ right: grid (tiles, replicas).

    left: (replicas, samples, N); right: (replicas, samples, K); out: rows of N x K float32 numbers
    that begin `out_stride` apart.
    """
    replica = tl.program_id(1).to(tl.int64)
    across: tl.constexpr = (K + BLOCK_K - 1) // BLOCK_K
    n = (tl.program_id(0) // across) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = (tl.program_id(0) % across) * BLOCK_K + tl.arange(0, BLOCK_K)
    left += replica * samples * N
    right += replica * samples * K
    acc = tl.zeros([BLOCK_N, BLOCK_K], tl.float32)
    for first in range(0, samples, BLOCK):
        s = first + tl.arange(0, BLOCK)
        inside = (s < samples)[:, None]
        a = tl.load(left + s[:, None] * N + n[None, :], mask=inside & (n < N)[None, :], other=0.0)
        b = tl.load(right + s[:, None] * K + k[None, :], mask=inside & (k < K)[None, :], other=0.0)
        acc = tl.dot(tl.trans(a), b, acc, input_precision=PRECISION)
    to = out + replica * out_stride + n[:, None] * K + k[None, :]
    tl.store(to, acc, mask=(n < N)[:, None] & (k < K)[None, :])
