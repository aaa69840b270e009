"""Attention over a paged cache on a CPU.

A row's keys form a list in order of position: its context, then its ancestors. The list is walked in blocks counted
from its first visible key, so a draft node adds the same numbers in the same order as the plain row would, and
neighbours, padding, chunking and threads cannot change a bit.
"""

from __future__ import annotations

import numpy as np
from numba import njit, prange

from augury.kernels.simd import axpy4, dot4, lane_sum, largest
from augury.kernels.simd_quads import QUAD, quad_gather, quad_scores
from augury.kernels.vectors import LANES

KEY_BLOCK = 64
FAST = {"reassoc", "contract", "arcp", "nsz", "afn", "nnan"}  # not ninf: a row's largest score starts at -inf
OPTIONS = {"cache": True, "nogil": True, "boundscheck": False, "error_model": "numpy", "fastmath": FAST}
# Called from two loops, which the compiler may not rearrange in two ways: the bits must be the same.
STEADY = {**OPTIONS, "fastmath": {"contract", "nsz", "nnan"}}

_LOG2E = np.float32(1.4426950408889634)
_FLOOR = np.float32(-126.0)
_HALF, _ONE, _TWO, _ZERO = np.float32(0.5), np.float32(1.0), np.float32(2.0), np.float32(0.0)
_LOWEST = np.float32(-np.inf)
# 2**f for |f| <= 1/2: the Taylor series, good to 1e-7.
_C1, _C2, _C3 = np.float32(0.6931471805599453), np.float32(0.2402265069591007), np.float32(0.05550410866482158)
_C4, _C5, _C6 = np.float32(0.009618129107628477), np.float32(0.0013333558146428443), np.float32(0.0001540353039338161)


@njit(inline="always", **OPTIONS)
def exp(x):
    """e**x that LLVM can vectorise, which np.exp is not: 0.5 ns an element instead of 4; what underflows is zero."""
    power = x * _LOG2E
    bounded = min(max(power, _FLOOR), np.float32(127.0))
    whole = np.floor(bounded + _HALF)
    f = bounded - whole
    series = _ONE + f * (_C1 + f * (_C2 + f * (_C3 + f * (_C4 + f * (_C5 + f * _C6)))))
    value = np.int32((np.int32(whole) + np.int32(127)) << np.int32(23)).view(np.float32) * series
    return value if power > _FLOOR else _ZERO


@njit(**OPTIONS)
def _list_keys(tables, slot, block_size, first, context, base, ancestors, position, window, keys):
    """Fill `keys` with the physical cache rows that are visible, in order of position, and count them.

    The list is padded to a multiple of four with its last entry.
    """
    since = position - window + 1 if window > 0 else 0
    if window < 0:
        since = position - position % -window
    count = 0
    c = max(since, first)
    while c < context:
        start = tables[slot, c // block_size] * block_size
        stop = min(context, (c // block_size + 1) * block_size)
        for offset in range(c % block_size, c % block_size + stop - c):
            keys[count] = start + offset
            count += 1
        c = stop
    depth = 0
    node = 0
    while ancestors != 0:
        if ancestors & 1:
            depth += 1
            if base - 1 + depth >= since:
                c = base + node
                keys[count] = tables[slot, c // block_size] * block_size + c % block_size
                count += 1
        ancestors >>= 1
        node += 1
    for pad in range(count, -(-count // 4) * 4):
        keys[pad] = keys[count - 1]
    return count


@njit(**OPTIONS)
def _score(q, q0, dim, cache, width, head, keys, start, padded, scores):
    """Dot products of one query with a block of keys; `head` is where its kv head begins in a cache row of `width`."""
    whole = dim // LANES * LANES
    for j in range(0, padded, 4):
        k0, k1 = keys[start + j] * width + head, keys[start + j + 1] * width + head
        k2, k3 = keys[start + j + 2] * width + head, keys[start + j + 3] * width + head
        dot4(q, q0, cache, k0, k1, k2, k3, whole, scores, j)
    if whole < dim:
        for j in range(padded):
            k = keys[start + j] * width + head
            for d in range(whole, dim):
                scores[j] += q[q0 + d] * cache[k + d]


@njit(**OPTIONS)
def _gather(out, o0, dim, cache, width, head, keys, start, padded, scores):
    """Add a block of values, weighted, to one output."""
    whole = dim // LANES * LANES
    for j in range(0, padded, 4):
        v0, v1 = keys[start + j] * width + head, keys[start + j + 1] * width + head
        v2, v3 = keys[start + j + 2] * width + head, keys[start + j + 3] * width + head
        axpy4(out, o0, scores, j, cache, v0, v1, v2, v3, whole)
    if whole < dim:
        for j in range(padded):
            v = keys[start + j] * width + head
            for d in range(whole, dim):
                out[o0 + d] += scores[j] * cache[v + d]


@njit(**STEADY)
def _bend(scores, count, scale, softcap):
    """Scale scores, then cap them smoothly: softcap * tanh(score / softcap)."""
    for j in range(count):
        scores[j] = softcap * (_ONE - _TWO / (exp(_TWO * scale / softcap * scores[j]) + _ONE))


@njit(**STEADY)
def _soften(scores, count, scale, top):
    """Turn scores to weights relative to the largest seen so far; returns (new largest, sum of the weights).

    Works on the whole block, with nothing past `count`: a loop of known length runs half as long again faster.
    """
    for j in range(count, KEY_BLOCK):
        scores[j] = _LOWEST
    top = max(top, largest(scores, 0, KEY_BLOCK, _LOWEST) * scale)
    for j in range(KEY_BLOCK):
        scores[j] = exp(scores[j] * scale - top)
    return top, lane_sum(scores, 0, KEY_BLOCK)


@njit(**OPTIONS)
def _attend_block(
    q, q0, key_dim, key_cache, out, o0, value_dim, value_cache, kv, keys, start, size, scores, scale, softcap, top
):
    """One query head over one block of keys; returns (largest score so far, factor for earlier sums, new sum).

    kv is (number of kv heads, the one that this head reads).
    """
    kv_heads, kv_head = kv
    padded = -(-size // 4) * 4
    _score(q, q0, key_dim, key_cache, kv_heads * key_dim, kv_head * key_dim, keys, start, padded, scores)
    if softcap > _ZERO:
        _bend(scores, size, scale, softcap)
        scale = _ONE
    higher, added = _soften(scores, size, scale, top)
    shrink = _ONE
    if higher > top:
        shrink = exp(top - higher)
        for d in range(o0, o0 + value_dim):
            out[d] *= shrink
    _gather(out, o0, value_dim, value_cache, kv_heads * value_dim, kv_head * value_dim, keys, start, padded, scores)
    return higher, shrink, added


@njit(**OPTIONS)
def _attend_quad(
    q,
    q0,
    q_apart,
    key_dim,
    key_cache,
    out,
    o0,
    o_apart,
    value_dim,
    value_cache,
    kv,
    keys,
    start,
    scores,
    scale,
    softcap,
    tops,
    totals,
    group,
):
    """One query head of four rows over a whole block of keys that all of them see; see _attend_block.

    tops and totals hold a row's figures `group` apart.
    """
    kv_heads, kv_head = kv
    width, head = kv_heads * key_dim, kv_head * key_dim
    for j in range(0, KEY_BLOCK, 4):
        k0, k1 = keys[start + j] * width + head, keys[start + j + 1] * width + head
        k2, k3 = keys[start + j + 2] * width + head, keys[start + j + 3] * width + head
        quad_scores(q, q0, q_apart, key_cache, k0, k1, k2, k3, key_dim, scores, j, KEY_BLOCK)
    for i in range(QUAD):
        own = scores[i * KEY_BLOCK : (i + 1) * KEY_BLOCK]
        if softcap > _ZERO:
            _bend(own, KEY_BLOCK, scale, softcap)
        top = tops[i * group]
        higher, added = _soften(own, KEY_BLOCK, _ONE if softcap > _ZERO else scale, top)
        shrink = _ONE
        if higher > top:
            shrink = exp(top - higher)
            for d in range(o0 + i * o_apart, o0 + i * o_apart + value_dim):
                out[d] *= shrink
        tops[i * group], totals[i * group] = higher, totals[i * group] * shrink + added
    width, head = kv_heads * value_dim, kv_head * value_dim
    for d in range(0, value_dim, QUAD * LANES):
        quad_gather(out, o0 + d, o_apart, scores, 0, KEY_BLOCK, value_cache, head + d, width, keys, start, KEY_BLOCK)


@njit(**OPTIONS)
def _blocks_shared(r, rows, window, key_dim, value_dim):
    """Whole blocks of keys that rows r .. r+3 all see, or -1 where they are not four rows of one slot."""
    _, slots, context, _, _, _, first = rows
    if window != 0 or r + QUAD > len(slots) or key_dim % LANES or value_dim % (QUAD * LANES):
        return -1
    least = context[r]
    for i in range(r + 1, r + QUAD):
        if slots[i] != slots[r]:
            return -1
        least = min(least, context[i])
    return max(0, least - first[0]) // KEY_BLOCK


@njit(**OPTIONS)
def _attend_rest(
    r,
    since,
    kv,
    q,
    q0,
    key_cache,
    value_cache,
    out,
    o0,
    dims,
    rows,
    block_size,
    scale,
    window,
    softcap,
    keys,
    scores,
    top,
    total,
):
    """The query heads of one row over its keys from number `since` on, and the division that ends them."""
    positions, slots, context, base, ancestors, tables, first = rows
    key_dim, value_dim = dims
    count = _list_keys(
        tables, slots[r], block_size, first[0], context[r], base[r], ancestors[r], positions[r], window, keys
    )
    for start in range(since, count, KEY_BLOCK):
        for g in range(len(top)):
            top[g], shrink, added = _attend_block(
                q,
                q0 + g * key_dim,
                key_dim,
                key_cache,
                out,
                o0 + g * value_dim,
                value_dim,
                value_cache,
                kv,
                keys,
                start,
                min(KEY_BLOCK, count - start),
                scores,
                scale,
                softcap,
                top[g],
            )
            total[g] = total[g] * shrink + added
    for g in range(len(top)):
        if total[g] > _ZERO:
            for d in range(o0 + g * value_dim, o0 + (g + 1) * value_dim):
                out[d] /= total[g]


@njit(**OPTIONS)
def _attend_some(
    r, number, shared, kv_head, q, key_cache, value_cache, rows, block_size, scale, window, softcap, sinks, out
):
    """All query heads of one kv head and some rows, block by block so that they share the keys while these are near.

    The first `shared` blocks are worked on for four rows at a time.
    """
    _, slots, context, _, _, tables, first = rows
    kv_heads, key_dim, value_dim = key_cache.shape[1], key_cache.shape[2], value_cache.shape[2]
    group = out.shape[1] // (value_dim * kv_heads)
    flat_q, flat_out, flat_keys, flat_values = (
        q.reshape(-1),
        out.reshape(-1),
        key_cache.reshape(-1),
        value_cache.reshape(-1),
    )
    q_apart, o_apart, kv = q.shape[1], out.shape[1], (kv_heads, kv_head)
    longest = 0
    for i in range(r, r + number):
        longest = max(longest, context[i])
    keys, scores = np.empty(longest + 64 + 4, np.int64), np.empty(QUAD * KEY_BLOCK, np.float32)
    top, total = np.empty(number * group, np.float32), np.empty(number * group, np.float32)
    for n in range(number * group):
        top[n] = sinks[kv_head * group + n % group] if sinks.size > 0 else _LOWEST
        total[n] = _ONE if sinks.size > 0 else _ZERO
    first_q, first_out = r * q_apart + kv_head * group * key_dim, r * o_apart + kv_head * group * value_dim
    for i in range(number):
        for d in range(first_out + i * o_apart, first_out + i * o_apart + group * value_dim):
            flat_out[d] = _ZERO
    if shared > 0:
        _list_keys(tables, slots[r], block_size, first[0], first[0] + shared * KEY_BLOCK, 0, 0, 0, 0, keys)
        for start in range(0, shared * KEY_BLOCK, KEY_BLOCK):
            for g in range(group):
                _attend_quad(
                    flat_q,
                    first_q + g * key_dim,
                    q_apart,
                    key_dim,
                    flat_keys,
                    flat_out,
                    first_out + g * value_dim,
                    o_apart,
                    value_dim,
                    flat_values,
                    kv,
                    keys,
                    start,
                    scores,
                    scale,
                    softcap,
                    top[g:],
                    total[g:],
                    group,
                )
    for i in range(number):
        mine = slice(i * group, (i + 1) * group)
        _attend_rest(
            r + i,
            max(0, shared) * KEY_BLOCK,
            kv,
            flat_q,
            first_q + i * q_apart,
            flat_keys,
            flat_values,
            flat_out,
            first_out + i * o_apart,
            (key_dim, value_dim),
            rows,
            block_size,
            scale,
            window,
            softcap,
            keys,
            scores,
            top[mine],
            total[mine],
        )


@njit(**OPTIONS)
def attend_share(thread, threads, q, key_cache, value_cache, rows, block_size, scale, window, softcap, sinks, out):
    """What one thread does of Ops.attend; a line of q begins with its query heads, out is [R, heads * value dim].

    Work is dealt round-robin, because later rows of a prompt see more keys. Four rows of one slot are one piece of work
    for each kv head, rows of different slots are four.
    """
    scale, softcap = np.float32(scale), np.float32(softcap)
    kv_heads, key_dim, value_dim = key_cache.shape[1], key_cache.shape[2], value_cache.shape[2]
    for r in range(0, out.shape[0], QUAD):
        shared = _blocks_shared(r, rows, window, key_dim, value_dim)
        number = QUAD if shared > 0 else 1
        for kv_head in range(kv_heads):
            piece = (r // QUAD * kv_heads + kv_head) * (QUAD // number)
            for row in range(r, min(r + QUAD, out.shape[0]), number):
                if (piece + row - r) % threads == thread:
                    _attend_some(
                        row,
                        number,
                        shared,
                        kv_head,
                        q,
                        key_cache,
                        value_cache,
                        rows,
                        block_size,
                        scale,
                        window,
                        softcap,
                        sinks,
                        out,
                    )


@njit(parallel=True, **OPTIONS)
def attend_parallel(threads, q, key_cache, value_cache, rows, block_size, scale, window, softcap, sinks, out):
    """All shares at once."""
    for share in prange(threads):
        thread = np.int64(share)  # unsigned as prange gives it: attend_share would be compiled once more
        attend_share(thread, threads, q, key_cache, value_cache, rows, block_size, scale, window, softcap, sinks, out)
