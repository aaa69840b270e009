"""Attention over a paged cache on a CPU.

A row's keys form a list in order of position: its context, then its ancestors. The list is walked in blocks counted
from its first visible key, so a draft node adds the same numbers in the same order as the plain row would, and
other rows, padding, chunking and threads cannot change a bit.
"""

from __future__ import annotations

import numpy as np
from numba import njit, prange

from augury.kernels.attend_parts_numba import begin, divide, list_keys, weigh
from augury.kernels.attend_tile_numba import attend_tile, rows_of_tile
from augury.kernels.machine import KEYS_ACROSS
from augury.kernels.numba_options import OPTIONS
from augury.kernels.simd import axpy4, dot4
from augury.kernels.simd_quads import QUAD, quad_gather, quad_scores
from augury.kernels.simd_softmax import KEY_BLOCK
from augury.kernels.vectors import LANES


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


@njit(**OPTIONS)
def _attend_block(
    q, q0, dims, key_cache, out, o0, value_cache, kv, keys, start, size, scores, scale, softcap, tops, totals, g
):
    """One query head over one block of keys; tops[g] and totals[g] are its largest score and its sum of weights so far.

    kv is (number of kv heads, the one that this head reads).
    """
    (kv_heads, kv_head), (key_dim, value_dim) = kv, dims
    padded = -(-size // 4) * 4
    _score(q, q0, key_dim, key_cache, kv_heads * key_dim, kv_head * key_dim, keys, start, padded, scores)
    weigh(scores, 0, size, scale, softcap, tops, totals, g, out, o0, value_dim)
    _gather(out, o0, value_dim, value_cache, kv_heads * value_dim, kv_head * value_dim, keys, start, padded, scores)


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
        o = o0 + i * o_apart
        weigh(scores, i * KEY_BLOCK, KEY_BLOCK, scale, softcap, tops, totals, i * group, out, o, value_dim)
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
    count = list_keys(
        tables, slots[r], block_size, first[0], context[r], base[r], ancestors[r], positions[r], window, keys
    )
    for start in range(since, count, KEY_BLOCK):
        for g in range(len(top)):
            _attend_block(
                q,
                q0 + g * key_dim,
                dims,
                key_cache,
                out,
                o0 + g * value_dim,
                value_cache,
                kv,
                keys,
                start,
                min(KEY_BLOCK, count - start),
                scores,
                scale,
                softcap,
                top,
                total,
                g,
            )
    for g in range(len(top)):
        o = o0 + g * value_dim
        divide(out, o, total[g], out, o, value_dim)


@njit(**OPTIONS)
def _attend_some(
    r, number, shared, kv_head, q, key_cache, value_cache, rows, block_size, scale, window, softcap, sinks, out
):
    """Attention of some rows in all query heads of one kv head, block by block so that they share keys in the cache.

    The first `shared` blocks are processed for four rows at a time.
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
    first_q, first_out = r * q_apart + kv_head * group * key_dim, r * o_apart + kv_head * group * value_dim
    for i in range(number):
        begin(top[i * group : (i + 1) * group], total[i * group : (i + 1) * group], sinks, kv_head * group)
        for d in range(first_out + i * o_apart, first_out + i * o_apart + group * value_dim):
            flat_out[d] = np.float32(0.0)
    if shared > 0:
        list_keys(tables, slots[r], block_size, first[0], first[0] + shared * KEY_BLOCK, 0, 0, 0, 0, keys)
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
    """One thread's share of Ops.attend; a row of q begins with its query heads, out is [R, heads * value dim].

    Work is dealt round-robin, because later rows of a prompt see more keys. For each kv head, a piece of work is a tile
    of rows, else four rows of one slot, else one row.
    """
    scale, softcap = np.float32(scale), np.float32(softcap)
    kv_heads, key_dim, value_dim = key_cache.shape[1], key_cache.shape[2], value_cache.shape[2]
    r, piece = 0, 0
    while r < out.shape[0]:
        tile = rows_of_tile(r, rows, window, key_dim, value_dim) if KEYS_ACROSS else 0
        shared = _blocks_shared(r, rows, window, key_dim, value_dim) if tile == 0 else 0
        number = max(tile, QUAD if shared > 0 else 1)
        for kv_head in range(kv_heads):
            piece += 1
            if piece % threads != thread:
                continue
            if tile > 0:
                attend_tile(r, tile, kv_head, q, key_cache, value_cache, rows, block_size, scale, softcap, sinks, out)
                continue
            _attend_some(
                r,
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
        r += number


@njit(parallel=True, **OPTIONS)
def attend_parallel(threads, q, key_cache, value_cache, rows, block_size, scale, window, softcap, sinks, out):
    """Run all shares in parallel."""
    for share in prange(threads):
        thread = np.int64(share)  # unsigned as prange gives it: attend_share would be compiled once more
        attend_share(thread, threads, q, key_cache, value_cache, rows, block_size, scale, window, softcap, sinks, out)
