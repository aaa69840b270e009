"""Queries and keys normed and rotated, keys and values put in the paged cache: one kernel, a program a head."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor


def rotate_and_store(
    qkv: Tensor, positions: Tensor, write: Tensor, rotary: tuple[Tensor, Tensor], keys: Tensor, values: Tensor,
    q_norm: Tensor | None = None, k_norm: Tensor | None = None, eps: float = 0.0,
) -> Tensor:  # fmt: skip
    """See Ops.rotate_and_store; queries are turned where they lie, so the result is a part of qkv."""
    rows, width = qkv.shape
    _, kv_heads, dim = keys.shape
    heads = width // dim - 2 * kv_heads
    cos, sin = rotary
    half = cos.shape[1]
    nothing = cos
    _rotate_and_store[(rows, heads + 2 * kv_heads)](
        qkv, positions, write, cos, sin, keys, values,
        nothing if q_norm is None else q_norm, nothing if k_norm is None else k_norm, eps, width,
        HEADS=heads, KV_HEADS=kv_heads, DIM=dim, HALF=half, BLOCK_HALF=triton.next_power_of_2(half),
        BLOCK_REST=triton.next_power_of_2(max(1, dim - 2 * half)), BLOCK_DIM=triton.next_power_of_2(dim),
        Q_NORM=q_norm is not None, K_NORM=k_norm is not None, num_warps=1,
    )  # fmt: skip
    return qkv[:, : heads * dim].unflatten(1, (heads, dim))


@triton.jit
def _rotate_and_store(
    qkv, positions, write, cos, sin, keys, values, q_norm, k_norm, eps, width,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, HALF: tl.constexpr, BLOCK_HALF: tl.constexpr,
    BLOCK_REST: tl.constexpr, BLOCK_DIM: tl.constexpr, Q_NORM: tl.constexpr, K_NORM: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    source = qkv + row * width + head * DIM
    to = tl.load(write + row)
    if head >= HEADS + KV_HEADS:
        d = tl.arange(0, BLOCK_DIM)
        value = tl.load(source + d, mask=d < DIM)
        place = values + (to * KV_HEADS + head - HEADS - KV_HEADS) * DIM
        tl.store(place + d, value.to(values.dtype.element_ty), mask=d < DIM)
    elif head >= HEADS:
        at = tl.load(positions + row)
        place = keys + (to * KV_HEADS + head - HEADS) * DIM
        _turn(source, place, at, cos, sin, k_norm, eps, DIM, HALF, BLOCK_HALF, BLOCK_REST, K_NORM)
    else:
        at = tl.load(positions + row)
        _turn(source, source, at, cos, sin, q_norm, eps, DIM, HALF, BLOCK_HALF, BLOCK_REST, Q_NORM)


@triton.jit
def _turn(
    source, place, at, cos, sin, norm, eps,
    DIM: tl.constexpr, HALF: tl.constexpr, BLOCK_HALF: tl.constexpr, BLOCK_REST: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    """Norm and rotate one head; dimensions past the rotated ones pass through."""
    h, r = tl.arange(0, BLOCK_HALF), 2 * HALF + tl.arange(0, BLOCK_REST)
    turned, rest = h < HALF, r < DIM
    kind = source.dtype.element_ty
    first = tl.load(source + h, mask=turned, other=0.0).to(tl.float32)
    second = tl.load(source + HALF + h, mask=turned, other=0.0).to(tl.float32)
    third = tl.load(source + r, mask=rest, other=0.0).to(tl.float32)
    if NORM:
        total = tl.sum(first * first, 0) + tl.sum(second * second, 0) + tl.sum(third * third, 0)
        scale = tl.rsqrt(total / DIM + eps)
        first = _weighed(first, scale, norm + h, turned, source)
        second = _weighed(second, scale, norm + HALF + h, turned, source)
        third = _weighed(third, scale, norm + r, rest, source)
    c = tl.load(cos + at * HALF + h, mask=turned, other=0.0)
    s = tl.load(sin + at * HALF + h, mask=turned, other=0.0)
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
