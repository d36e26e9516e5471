"""Triton code that takes every number by itself: activations, pools on the way down, types."""

import triton
import triton.language as tl


@triton.jit
def activate(z, KIND: tl.constexpr):
    """The activation by name; "" is the identity, "~sigmoid" one instruction, exact to 2^-11."""
    if KIND == "sigmoid":
        return 1.0 / (1.0 + tl.exp(-z))
    elif KIND == "~sigmoid":
        half = tl.inline_asm_elementwise(
            "tanh.approx.f32 $0, $1;", "=f,f", [0.5 * z], dtype=tl.float32, is_pure=True, pack=1
        )
        return 0.5 * half + 0.5
    elif KIND == "relu":
        return tl.maximum(z, 0.0)
    elif KIND == "tanh":
        return 2.0 / (1.0 + tl.exp(-2.0 * z)) - 1.0
    else:
        return z


@triton.jit
def slope(a, KIND: tl.constexpr):
    """The activation's derivative, from its output `a`."""
    if KIND == "sigmoid" or KIND == "~sigmoid":
        return a * (1.0 - a)
    elif KIND == "relu":
        return tl.where(a > 0.0, 1.0, 0.0)
    elif KIND == "tanh":
        return 1.0 - a * a
    else:
        return a * 0.0 + 1.0


@triton.jit
def unpool(
    gradient, outputs, index, dz, where, total, images,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, ACT: tl.constexpr, POOL: tl.constexpr,
    SPREAD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """From gradients of flattened outputs (images, C, H, W) to those of the sums below them.

    dz: channels last, behind a max pool (images, 2H, 2W, C) if SPREAD, else with its index in the
    same order in `where`; total: sums over pixels, (replicas, programs, C). Grid (blocks of pixels,
    replicas).
    """
    replica = tl.program_id(1).to(tl.int64)
    m = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = (m < images * (H * W))[:, None]
    channel = tl.arange(0, C)
    image = m // (H * W)
    pixel = m % (H * W)
    start = replica * images * (H * W * C)
    at = start + (image * (H * W * C) + pixel)[:, None] + channel[None, :] * (H * W)
    a = tl.load(outputs + at, mask=inside, other=0.0).to(tl.float32)
    g = tl.load(gradient + at, mask=inside, other=0.0).to(tl.float32) * slope(a, ACT)
    g = tl.where(inside, g, 0.0)
    if SPREAD:
        place = tl.load(index + at, mask=inside, other=0).to(tl.int32)
        row = 2 * (pixel // W)
        column = 2 * (pixel % W)
        wide = 4 * start + ((image * (4 * H * W) + row * (2 * W) + column) * C)[:, None]
        for to in tl.static_range(4):
            offset = ((to // 2) * 2 * W + to % 2) * C
            value = tl.where(place == to, g, 0.0).to(dz.dtype.element_ty)
            tl.store(dz + wide + offset + channel[None, :], value, mask=inside)
    else:
        to = start + (m * C)[:, None] + channel[None, :]
        tl.store(dz + to, g.to(dz.dtype.element_ty), mask=inside)
        if POOL:
            tl.store(where + to, tl.load(index + at, mask=inside), mask=inside)
    at = replica * tl.num_programs(0) + tl.program_id(0)
    tl.store(total + at * C + channel, tl.sum(g, 0))


@triton.jit
def convert(source, out, count, stride, BLOCK: tl.constexpr):
    """Rows that begin `stride` apart, in another type and one after the other."""
    replica = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(source + replica * stride + at, mask=at < count)
    tl.store(out + replica * count + at, value.to(out.dtype.element_ty), mask=at < count)


@triton.jit
def arrange(
    weight, out, stride, count, COUT: tl.constexpr, CIN: tl.constexpr,
    BACKWARD: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Torch's (replicas, COUT, CIN, 3, 3) as the convolutions take it: grid (blocks, replicas).

    out: (replicas, 3, 3, from, to), flipped and from outputs to inputs if BACKWARD; if WIDE
    (replicas, 3, 4 from, 2 to), the weights of four neighbouring inputs for two outputs.
    """
    replica = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    TO: tl.constexpr = CIN if BACKWARD else COUT
    FROM: tl.constexpr = COUT if BACKWARD else CIN
    if WIDE:
        to = at % TO
        right = (at // TO) % 2
        source = (at // (2 * TO)) % FROM
        dx = (at // (2 * TO * FROM)) % 4 - right
        dy = at // (8 * TO * FROM)
    else:
        to = at % TO
        source = (at // TO) % FROM
        dx = (at // (TO * FROM)) % 3
        dy = at // (3 * TO * FROM)
    there = (at < count) & (dx >= 0) & (dx < 3)
    if BACKWARD:
        place = (source * CIN + to) * 9 + (2 - dy) * 3 + 2 - dx
    else:
        place = (to * CIN + source) * 9 + dy * 3 + dx
    value = tl.load(weight + replica * stride + place, mask=there, other=0.0)
    tl.store(out + replica * count + at, value.to(out.dtype.element_ty), mask=at < count)
