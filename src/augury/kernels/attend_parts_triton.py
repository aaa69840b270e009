"""The pieces of attention: an item's record, its keys and values, what it sees of them, and the join of splits."""

from __future__ import annotations

import triton
import triton.language as tl

MAX_BITS = tl.constexpr(63)
LOG2_E = tl.constexpr(1.4426950408889634)
GROUP = tl.constexpr(8)  # splits joined before the groups are: many programs join a long request's splits at once


@triton.jit
def put(sums, tops, item, kv, top, weight, sum_, KV_HEADS: tl.constexpr, HEIGHT: tl.constexpr, VALUES: tl.constexpr):
    """Write unfinished sums to scratch memory."""
    at = (item * KV_HEADS + kv) * HEIGHT + tl.arange(0, HEIGHT)  # scratch memory is small enough for 32 bits
    tl.store(sums + at[:, None] * VALUES + tl.arange(0, VALUES)[None, :], sum_)
    tl.store(tops + 2 * at, top)
    tl.store(tops + 2 * at + 1, weight)


@triton.jit
def arrive(counter, expected):
    """Count this program as arrived; returns whether it is the last one expected, which resets the count to zero."""
    tl.debug_barrier()  # every thread's sums are written before
    last = tl.atomic_add(counter, 1, sem="acq_rel") == expected - 1
    if last:
        tl.debug_barrier()
        tl.store(counter, 0)
    return last


@triton.jit
def join(
    sums, tops, first_item, step, splits, kv, KV_HEADS: tl.constexpr, HEIGHT: tl.constexpr, BLOCK_VALUE: tl.constexpr
):
    """Join the unfinished sums of `splits` items, every `step`-th from the first on, in order of position."""
    top, weight = tl.full([HEIGHT], float("-inf"), tl.float32), tl.zeros([HEIGHT], tl.float32)
    sum_ = tl.zeros([HEIGHT, BLOCK_VALUE], tl.float32)
    for i in range(0, splits, 4):
        # Load four before the first is used: otherwise many splits would wait for memory one by one.
        top_0, weight_0, sum_0 = _split(sums, tops, first_item, i, step, splits, kv, KV_HEADS, HEIGHT, BLOCK_VALUE)
        top_1, weight_1, sum_1 = _split(sums, tops, first_item, i + 1, step, splits, kv, KV_HEADS, HEIGHT, BLOCK_VALUE)
        top_2, weight_2, sum_2 = _split(sums, tops, first_item, i + 2, step, splits, kv, KV_HEADS, HEIGHT, BLOCK_VALUE)
        top_3, weight_3, sum_3 = _split(sums, tops, first_item, i + 3, step, splits, kv, KV_HEADS, HEIGHT, BLOCK_VALUE)
        top, weight, sum_ = _take_in(top, weight, sum_, top_0, weight_0, sum_0)
        top, weight, sum_ = _take_in(top, weight, sum_, top_1, weight_1, sum_1)
        top, weight, sum_ = _take_in(top, weight, sum_, top_2, weight_2, sum_2)
        top, weight, sum_ = _take_in(top, weight, sum_, top_3, weight_3, sum_3)
    return top, weight, sum_


@triton.jit
def _split(
    sums, tops, first_item, i, step, splits, kv, KV_HEADS: tl.constexpr, HEIGHT: tl.constexpr, BLOCK_VALUE: tl.constexpr
):
    """The unfinished sums of the i-th split; past the last one, values that change nothing.

    Loads bypass the first-level cache: another processor wrote the values.
    """
    m, dv, there = tl.arange(0, HEIGHT), tl.arange(0, BLOCK_VALUE), i < splits
    at = ((first_item + i * step) * KV_HEADS + kv) * HEIGHT + m
    top = tl.load(tops + 2 * at, mask=there, other=float("-inf"), volatile=True)
    weight = tl.load(tops + 2 * at + 1, mask=there, other=0.0, volatile=True)
    sum_ = tl.load(sums + at[:, None] * BLOCK_VALUE + dv[None, :], mask=there, other=0.0, volatile=True)
    return top, weight, sum_


@triton.jit
def _take_in(top, weight, sum_, other_top, other_weight, other_sum):
    """Merge two unfinished sums."""
    higher = tl.maximum(top, other_top)
    level = tl.where(higher == float("-inf"), 0.0, higher)
    fade, gain = tl.exp2((top - level) * LOG2_E), tl.exp2((other_top - level) * LOG2_E)
    return higher, weight * fade + other_weight * gain, sum_ * fade[:, None] + other_sum * gain[:, None]


@triton.jit
def record(items, item, there):
    """An item's fields; see FIELDS in attend_plan_triton."""
    at = items + 8 * item
    begin, size = tl.load(at, mask=there, other=0), tl.load(at + 1, mask=there, other=0)
    slot, first = tl.load(at + 2, mask=there, other=0).to(tl.int64), tl.load(at + 3, mask=there, other=0)
    last, splits = tl.load(at + 4, mask=there, other=0), tl.load(at + 5, mask=there, other=0)
    first_item, shared = tl.load(at + 6, mask=there, other=0), tl.load(at + 7, mask=there, other=0)
    return begin, size, slot, first, last, splits, first_item, shared


@triton.jit
def blocks(table, start, last, KEYS: tl.constexpr, BLOCK_SIZE: tl.constexpr):
    """The numbers of the cache blocks that hold KEYS keys from `start` on."""
    logical = start + tl.arange(0, KEYS)
    return tl.load(table + logical // BLOCK_SIZE, mask=logical < last, other=0)


@triton.jit
def fetch(
    keys,
    values,
    block,
    start,
    last,
    kv,
    KV_HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    BLOCK_KEY: tl.constexpr,
    BLOCK_VALUE: tl.constexpr,
    KEYS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
):
    """Some keys [D, KEYS] and their values [KEYS, D] of one key head, zeros past the last."""
    dk, dv = tl.arange(0, BLOCK_KEY), tl.arange(0, BLOCK_VALUE)
    logical = start + tl.arange(0, KEYS)
    inside = logical < last
    physical = (block * BLOCK_SIZE + logical % BLOCK_SIZE) * KV_HEADS + kv
    key_at, value_at = physical[None, :] * KEY_DIM + dk[:, None], physical[:, None] * VALUE_DIM + dv[None, :]
    key = tl.load(keys + key_at, mask=inside[None, :] & (dk < KEY_DIM)[:, None], other=0.0)
    return key, tl.load(values + value_at, mask=inside[:, None] & (dv < VALUE_DIM)[None, :], other=0.0)


@triton.jit
def take(
    start,
    last,
    key,
    value,
    query,
    scale,
    softcap,
    top,
    weight,
    sum_,
    seen,
    root,
    bits,
    place,
    first_key,
    shared,
    KEYS: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    EXACT: tl.constexpr,
    MASK: tl.constexpr,
):
    """Take some keys into the running maximum, total and sum.

    Masks are made always, never, or late: past the keys that every row sees (`shared`).
    """
    key, value = key.to(query.dtype), value.to(query.dtype)  # the cache may have 8 bits
    if EXACT:
        scores = tl.dot(query, key, input_precision="ieee") * scale
    else:
        scores = tl.dot(query, key) * scale
    if SOFTCAP:
        scores = softcap * _tanh(scores / softcap)
    if MASK != "never":
        if (MASK == "always") | (start + KEYS > tl.minimum(shared, last)) | (start < first_key) | (WINDOW != 0):
            logical = start + tl.arange(0, KEYS)
            visible = _visible(logical, seen, root, bits, place, first_key, WINDOW) & (logical < last)[None, :]
            scores = tl.where(visible, scores, float("-inf"))
            # Keys that no row sees may hold anything, and 0 x NaN is NaN.
            value = tl.where((tl.max(visible.to(tl.int32), 0) > 0)[:, None], value, 0.0)
    higher = tl.maximum(top, tl.max(scores, 1))
    level = tl.where(higher == float("-inf"), 0.0, higher)
    p = tl.exp2((scores - level[:, None]) * LOG2_E)
    fade = tl.exp2((top - level) * LOG2_E)
    weight = weight * fade + tl.sum(p, 1)
    sum_ = sum_ * fade[:, None]
    if EXACT:
        sum_ += tl.dot(p, value, input_precision="ieee")
    else:
        sum_ = tl.dot(p.to(query.dtype), value, sum_)
    return higher, weight, sum_


@triton.jit
def _visible(logical, seen, root, bits, place, first_key, WINDOW: tl.constexpr):
    """Which of some keys each query row sees: its context, and by their bits its ancestors in the draft."""
    node = logical[None, :] - root[:, None]
    ancestor = (node >= 0) & (node < MAX_BITS) & ((bits[:, None] >> tl.minimum(tl.maximum(node, 0), 62)) & 1 != 0)
    before = (logical[None, :] < seen[:, None]) & (logical >= first_key)[None, :]
    visible = before | ancestor
    if WINDOW != 0:  # an ancestor's position follows from its depth
        depth = _ones(bits[:, None] & ((2 << tl.minimum(tl.maximum(node, 0), 61)) - 1))
        at = tl.where(logical[None, :] < seen[:, None], logical[None, :], root[:, None] - 1 + depth)
        if WINDOW > 0:
            visible = visible & (place[:, None] - at < WINDOW)
        else:  # chunks of so many positions
            visible = visible & (at >= (place - place % -WINDOW)[:, None])
    return visible


@triton.jit
def _tanh(x):
    """From exp alone, which the interpreter has too; saturates without overflow."""
    e = tl.exp(-2 * tl.abs(x))
    t = (1 - e) / (1 + e)
    return tl.where(x < 0, -t, t)


@triton.jit
def _ones(bits):
    """How many bits are set in a positive int64."""
    bits = bits - ((bits >> 1) & 0x5555555555555555)
    bits = (bits & 0x3333333333333333) + ((bits >> 2) & 0x3333333333333333)
    bits = (bits + (bits >> 4)) & 0x0F0F0F0F0F0F0F0F
    bits = bits + (bits >> 8)
    bits = bits + (bits >> 16)
    return (bits + (bits >> 32)) & 0x7F
