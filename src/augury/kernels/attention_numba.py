"""Attention over a paged cache on a CPU.

A row's keys form a list in order of position: its context, then its ancestors. The list is walked in blocks counted from
its first visible key, so a draft node adds the same numbers in the same order as the plain row it stands for, and
neighbours, padding, chunking and threads cannot change a bit.
"""

from __future__ import annotations

import numpy as np
from numba import njit, prange

from augury.kernels.simd import LANES, axpy4, dot4

KEY_BLOCK = 64
FAST = {"reassoc", "contract", "arcp", "nsz", "afn"}  # not nnan/ninf: scores start at -inf
OPTIONS = {"cache": True, "nogil": True, "boundscheck": False, "error_model": "numpy", "fastmath": FAST}

_LOG2E = np.float32(1.4426950408889634)
_FLOOR = np.float32(-126.0)
_HALF, _ONE, _TWO, _ZERO = np.float32(0.5), np.float32(1.0), np.float32(2.0), np.float32(0.0)
_LOWEST = np.float32(-np.inf)
# 2**f for |f| <= 1/2: the Taylor series, good to 1e-7.
_C1, _C2, _C3 = np.float32(0.6931471805599453), np.float32(0.2402265069591007), np.float32(0.05550410866482158)
_C4, _C5, _C6 = np.float32(0.009618129107628477), np.float32(0.0013333558146428443), np.float32(0.0001540353039338161)


@njit(inline="always", **OPTIONS)
def exp(x):
    """e**x that LLVM can vectorise, which np.exp is not: 0.5 ns an element instead of 4."""
    x = min(max(x * _LOG2E, _FLOOR), np.float32(127.0))
    whole = np.floor(x + _HALF)
    f = x - whole
    series = _ONE + f * (_C1 + f * (_C2 + f * (_C3 + f * (_C4 + f * (_C5 + f * _C6)))))
    return np.int32((np.int32(whole) + np.int32(127)) << np.int32(23)).view(np.float32) * series


@njit(**OPTIONS)
def _list_keys(table, block_size, context, base, ancestors, position, window, width, keys):
    """Fill `keys` with the first elements of the visible cache rows, in order of position, and count them.

    The list is padded to a multiple of four with its last entry.
    """
    since = position - window + 1 if window > 0 else 0
    count = 0
    c = max(since, 0)
    while c < context:
        start = table[c // block_size] * block_size
        stop = min(context, (c // block_size + 1) * block_size)
        for offset in range(c % block_size, c % block_size + stop - c):
            keys[count] = (start + offset) * width
            count += 1
        c = stop
    depth = 0
    node = 0
    while ancestors != 0:
        if ancestors & 1:
            depth += 1
            if base - 1 + depth >= since:
                c = base + node
                keys[count] = (table[c // block_size] * block_size + c % block_size) * width
                count += 1
        ancestors >>= 1
        node += 1
    for pad in range(count, -(-count // 4) * 4):
        keys[pad] = keys[count - 1]
    return count


@njit(**OPTIONS)
def _score(q, q0, dim, cache, head, keys, start, padded, scores, s0):
    """Dot products of one query with a block of keys; `head` is where its kv head begins in a cache row."""
    whole = dim // LANES * LANES
    for j in range(0, padded, 4):
        k0, k1 = keys[start + j] + head, keys[start + j + 1] + head
        k2, k3 = keys[start + j + 2] + head, keys[start + j + 3] + head
        if whole > 0:
            dot4(q, q0, cache, k0, k1, k2, k3, whole, scores, s0 + j)
        else:
            scores[s0 + j : s0 + j + 4] = _ZERO
        for d in range(whole, dim):
            scores[s0 + j] += q[q0 + d] * cache[k0 + d]
            scores[s0 + j + 1] += q[q0 + d] * cache[k1 + d]
            scores[s0 + j + 2] += q[q0 + d] * cache[k2 + d]
            scores[s0 + j + 3] += q[q0 + d] * cache[k3 + d]


@njit(**OPTIONS)
def _gather(out, o0, dim, cache, head, keys, start, padded, scores, s0):
    """Add a block of values, weighted, to one output."""
    whole = dim // LANES * LANES
    for j in range(0, padded, 4):
        v0, v1 = keys[start + j] + head, keys[start + j + 1] + head
        v2, v3 = keys[start + j + 2] + head, keys[start + j + 3] + head
        if whole > 0:
            axpy4(out, o0, scores, s0 + j, cache, v0, v1, v2, v3, whole)
        for d in range(whole, dim):
            near = scores[s0 + j] * cache[v0 + d] + scores[s0 + j + 1] * cache[v1 + d]
            out[o0 + d] += near + (scores[s0 + j + 2] * cache[v2 + d] + scores[s0 + j + 3] * cache[v3 + d])


@njit(**OPTIONS)
def _soften(scores, s0, count, padded, scale, softcap, top):
    """Scale scores and turn them to weights relative to the largest seen so far; gives (new largest, their sum)."""
    for j in range(s0, s0 + count):
        scores[j] *= scale
    if softcap > _ZERO:
        for j in range(s0, s0 + count):
            scores[j] = softcap * (_ONE - _TWO / (exp(_TWO * scores[j] / softcap) + _ONE))
    for j in range(s0, s0 + count):
        top = max(top, scores[j])
    total = _ZERO
    for j in range(s0, s0 + count):
        weight = exp(scores[j] - top)
        scores[j] = weight
        total += weight
    for j in range(s0 + count, s0 + padded):
        scores[j] = _ZERO
    return top, total


@njit(**OPTIONS)
def _attend_heads(q, out, key_cache, value_cache, shape, keys, value_keys, count, kv_head, scale, softcap, sinks):
    """All query heads of one kv head of one row; q and out are that row's, flat."""
    group, key_dim, value_dim = shape
    scores = np.empty(group * KEY_BLOCK, np.float32)
    top = np.empty(group, np.float32)
    total = np.empty(group, np.float32)
    for g in range(group):
        head = kv_head * group + g
        top[g] = sinks[head] if sinks.size > 0 else _LOWEST
        total[g] = _ONE if sinks.size > 0 else _ZERO
        out[head * value_dim : (head + 1) * value_dim] = _ZERO
    for start in range(0, count, KEY_BLOCK):
        size = min(KEY_BLOCK, count - start)
        padded = -(-size // 4) * 4
        for g in range(group):
            head, s0 = kv_head * group + g, g * KEY_BLOCK
            _score(q, head * key_dim, key_dim, key_cache, kv_head * key_dim, keys, start, padded, scores, s0)
            higher, added = _soften(scores, s0, size, padded, scale, softcap, top[g])
            if higher > top[g]:
                # exp(-inf) is a tiny number here, not zero; nothing has been summed yet in that case.
                shrink = exp(top[g] - higher)
                total[g] *= shrink
                for d in range(head * value_dim, (head + 1) * value_dim):
                    out[d] *= shrink
                top[g] = higher
            total[g] += added
            _gather(
                out,
                head * value_dim,
                value_dim,
                value_cache,
                kv_head * value_dim,
                value_keys,
                start,
                padded,
                scores,
                s0,
            )
    for g in range(group):
        head = kv_head * group + g
        if total[g] > _ZERO:
            for d in range(head * value_dim, (head + 1) * value_dim):
                out[d] /= total[g]


@njit(**OPTIONS)
def _attend_one(item, q, key_cache, value_cache, shape, rows, block_size, scale, window, softcap, sinks, out):
    """One (row, kv head)."""
    kv_heads, group, key_dim, value_dim = shape
    positions, slots, context, base, ancestors, tables = rows
    r, kv_head = item // kv_heads, item % kv_heads
    room = context[r] + 64 + 4
    keys = np.empty(room, np.int64)
    count = _list_keys(
        tables[slots[r]], block_size, context[r], base[r], ancestors[r], positions[r], window, kv_heads * key_dim, keys
    )
    value_keys = keys
    if value_dim != key_dim:
        value_keys = keys[: -(-count // 4) * 4] // key_dim * value_dim
    _attend_heads(
        q[r], out[r], key_cache, value_cache, (group, key_dim, value_dim), keys, value_keys, count, kv_head,
        scale, softcap, sinks,
    )  # fmt: skip


@njit(**OPTIONS)
def attend_serial(q, key_cache, value_cache, shape, rows, block_size, scale, window, softcap, sinks, out):
    """See Ops.attend; q, out [R, H * D] and the caches flat."""
    for item in range(q.shape[0] * shape[0]):
        _attend_one(item, q, key_cache, value_cache, shape, rows, block_size, scale, window, softcap, sinks, out)


@njit(parallel=True, **OPTIONS)
def attend_parallel(q, key_cache, value_cache, shape, rows, block_size, scale, window, softcap, sinks, out, threads):
    """The same over threads; items are dealt like cards, since the rows of a prompt grow longer."""
    for thread in prange(threads):
        for item in range(thread, q.shape[0] * shape[0], threads):
            _attend_one(item, q, key_cache, value_cache, shape, rows, block_size, scale, window, softcap, sinks, out)
