"""Triton kernels of single samples' gradients of a convolution, and of their weighted sums."""

import triton
import triton.language as tl

from sottovoce.kernels.device.weights import _halves


@triton.jit
def weight_gradients(
    x, dz, each, totals, squares,
    H: tl.constexpr, W: tl.constexpr, CIN: tl.constexpr, COUT: tl.constexpr, WIDE: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """each[s, dy, dx, o, i] = Σ dz[y, x, o] input[y + dy - 1, x + dx - 1, i]: grid (3 samples,).

    A program computes the three taps of one dy of one sample, from pairs of horizontal neighbours
    as `weights.weight_gradient` does, and the sum of their squares: (samples, 3). That of dy = 1
    adds up dz, too: `totals` has the biases' gradients, whose squares count in `squares`.
    """
    dy = tl.program_id(0) % 3
    sample = (tl.program_id(0) // 3).to(tl.int64)
    x += sample * (H * W * CIN)
    dz += sample * (H * W * COUT)
    ci = tl.arange(0, CIN)
    co = tl.arange(0, COUT)
    both = tl.arange(0, 2 * COUT)
    ROWS: tl.constexpr = 2 * COUT if WIDE else COUT
    acc0 = tl.zeros([ROWS, CIN], tl.float32)
    acc1 = tl.zeros([ROWS, CIN], tl.float32)
    acc2 = tl.zeros([ROWS, CIN], tl.float32)
    acc3 = tl.zeros([ROWS, CIN], tl.float32)
    added = tl.zeros([ROWS], tl.float32)
    count: tl.constexpr = H * W // 2
    for first in range(0, count, BLOCK):
        m = first + tl.arange(0, BLOCK)
        y = m // (W // 2)
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
            from_ = dz + (2 * m * COUT)[:, None] + both[None, :]
            d = tl.load(from_, mask=inside[:, None], other=0.0)
            added += tl.sum(d.to(tl.float32), 0)
            dt = tl.trans(d)
            acc0 = tl.dot(dt, a0, acc0, input_precision=PRECISION)
            acc1 = tl.dot(dt, a1, acc1, input_precision=PRECISION)
            acc2 = tl.dot(dt, a2, acc2, input_precision=PRECISION)
            acc3 = tl.dot(dt, a3, acc3, input_precision=PRECISION)
        else:
            from_ = dz + (2 * m * COUT)[:, None] + co[None, :]
            left_dz = tl.load(from_, mask=inside[:, None], other=0.0)
            right_dz = tl.load(from_ + COUT, mask=inside[:, None], other=0.0)
            added += tl.sum(left_dz.to(tl.float32) + right_dz.to(tl.float32), 0)
            d0 = tl.trans(left_dz)
            d1 = tl.trans(right_dz)
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
    square = tl.sum(acc0 * acc0) + tl.sum(acc1 * acc1) + tl.sum(acc2 * acc2)
    if dy == 1:
        total = tl.sum(tl.reshape(added, [2, COUT]), 0) if WIDE else added
        square += tl.sum(total * total)
        tl.store(totals + sample * COUT + co, total)
    tl.store(squares + sample * 3 + dy, square)
    to = each + (sample * 3 + dy) * (3 * COUT * CIN) + co[:, None] * CIN + ci[None, :]
    tl.store(to, acc0)
    tl.store(to + COUT * CIN, acc1)
    tl.store(to + 2 * COUT * CIN, acc2)


@triton.jit
def weighted_sum(
    each, weights, out, samples, out_stride,
    CIN: tl.constexpr, COUT: tl.constexpr, BLOCK: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """out[r, o, i, dy, dx] = Σ_n c_rn each[r, n, dy, dx, o, i]: grid (blocks, replicas).

    weights: c, (replicas, samples); out: rows of float32 numbers that begin `out_stride` apart.
    """
    SIZE: tl.constexpr = 9 * CIN * COUT
    replica = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    each += replica * samples * SIZE
    weights += replica * samples
    acc = tl.zeros([BLOCK], tl.float32)
    for first in range(0, samples, STEP):
        n = first + tl.arange(0, STEP)
        c = tl.load(weights + n, mask=n < samples, other=0.0)
        # What a sample of weight 0 holds may be infinite: it is not read.
        from_ = each + n.to(tl.int64)[:, None] * SIZE + at[None, :]
        one = tl.load(from_, mask=(c != 0.0)[:, None], other=0.0)
        acc += tl.sum(c[:, None] * one, 0)
    tap = at // (COUT * CIN)
    tl.store(out + replica * out_stride + (at % (COUT * CIN)) * 9 + tap, acc)
