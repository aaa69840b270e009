"""Norm and rotate queries and keys, write keys and values to the paged cache: one kernel, a few heads per program."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from augury.kernels.ahead_triton import await_inputs, launched_ahead

TOGETHER = 8  # heads of one program


def rotate_and_store(
    qkv: Tensor,
    positions: Tensor,
    write: Tensor,
    rotary: tuple[Tensor, Tensor],
    keys: Tensor,
    values: Tensor,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    eps: float = 0.0,
) -> Tensor:
    """See Ops.rotate_and_store; queries are rotated in place, so the result is a part of qkv."""
    rows, width = qkv.shape
    _, kv_heads, dim = keys.shape
    heads = width // dim - 2 * kv_heads
    cos, sin = rotary
    half = cos.shape[1]
    nothing = cos
    blocks = [triton.cdiv(heads, TOGETHER), triton.cdiv(kv_heads, TOGETHER)]
    _rotate_and_store[(rows, blocks[0] + 2 * blocks[1])](
        qkv,
        positions,
        write,
        cos,
        sin,
        keys,
        values,
        nothing if q_norm is None else q_norm,
        nothing if k_norm is None else k_norm,
        eps,
        width,
        HEADS=heads,
        KV_HEADS=kv_heads,
        DIM=dim,
        HALF=half,
        BLOCK_HALF=triton.next_power_of_2(half),
        BLOCK_REST=triton.next_power_of_2(max(1, dim - 2 * half)),
        BLOCK_DIM=triton.next_power_of_2(dim),
        Q_NORM=q_norm is not None,
        K_NORM=k_norm is not None,
        TOGETHER=TOGETHER,
        num_warps=2,
        **launched_ahead(qkv),
    )
    return qkv[:, : heads * dim].unflatten(1, (heads, dim))


@triton.jit
def _rotate_and_store(
    qkv,
    positions,
    write,
    cos,
    sin,
    keys,
    values,
    q_norm,
    k_norm,
    eps,
    width,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    BLOCK_REST: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    Q_NORM: tl.constexpr,
    K_NORM: tl.constexpr,
    TOGETHER: tl.constexpr,
    AHEAD: tl.constexpr,
):
    await_inputs(AHEAD)
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    to, at = tl.load(write + row), tl.load(positions + row)
    line, i = qkv + row * width, tl.arange(0, TOGETHER)
    queries: tl.constexpr = (HEADS + TOGETHER - 1) // TOGETHER
    stored: tl.constexpr = (KV_HEADS + TOGETHER - 1) // TOGETHER
    if block < queries:
        head = block * TOGETHER + i
        source = line + head[:, None] * DIM
        _turn(source, source, head < HEADS, at, cos, sin, q_norm, eps, DIM, HALF, BLOCK_HALF, BLOCK_REST, Q_NORM)
    elif block < queries + stored:
        head = (block - queries) * TOGETHER + i
        source = line + (HEADS + head)[:, None] * DIM
        place = keys + (to * KV_HEADS + head)[:, None] * DIM
        _turn(source, place, head < KV_HEADS, at, cos, sin, k_norm, eps, DIM, HALF, BLOCK_HALF, BLOCK_REST, K_NORM)
    else:
        head, d = (block - queries - stored) * TOGETHER + i, tl.arange(0, BLOCK_DIM)
        real = (head < KV_HEADS)[:, None] & (d < DIM)[None, :]
        value = tl.load(line + (HEADS + KV_HEADS + head)[:, None] * DIM + d[None, :], mask=real)
        place = values + (to * KV_HEADS + head)[:, None] * DIM
        tl.store(place + d[None, :], value.to(values.dtype.element_ty), mask=real)


@triton.jit
def _turn(
    source,
    place,
    real,
    at,
    cos,
    sin,
    norm,
    eps,
    DIM: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    BLOCK_REST: tl.constexpr,
    NORM: tl.constexpr,
):
    """Norm and rotate some heads, of which `source` [T, 1] points to the first elements; the rest passes through."""
    h, r = tl.arange(0, BLOCK_HALF)[None, :], 2 * HALF + tl.arange(0, BLOCK_REST)[None, :]
    turned, rest = real[:, None] & (h < HALF), real[:, None] & (r < DIM)
    first = tl.load(source + h, mask=turned, other=0.0).to(tl.float32)
    second = tl.load(source + HALF + h, mask=turned, other=0.0).to(tl.float32)
    third = tl.load(source + r, mask=rest, other=0.0).to(tl.float32)
    if NORM:
        total = tl.sum(first * first, 1) + tl.sum(second * second, 1) + tl.sum(third * third, 1)
        scale = tl.rsqrt(total / DIM + eps)[:, None]
        first = _weighed(first, scale, norm + h, h < HALF, source)
        second = _weighed(second, scale, norm + HALF + h, h < HALF, source)
        third = _weighed(third, scale, norm + r, r < DIM, source)
    c = tl.load(cos + at * HALF + h, mask=h < HALF, other=0.0)
    s = tl.load(sin + at * HALF + h, mask=h < HALF, other=0.0)
    kind = source.dtype.element_ty
    goal = place.dtype.element_ty
    tl.store(place + h, (first * c - second * s).to(kind).to(goal), mask=turned)
    tl.store(place + HALF + h, (second * c + first * s).to(kind).to(goal), mask=turned)
    tl.store(place + r, third.to(kind).to(goal), mask=rest)


@triton.jit
def _weighed(value, scale, weight, inside, source):
    """A normed part, rounded before and after its weight as the reference rounds."""
    kind = source.dtype.element_ty
    normed = (value * scale).to(kind).to(tl.float32)
    return (normed * tl.load(weight, mask=inside, other=0.0).to(tl.float32)).to(kind).to(tl.float32)
