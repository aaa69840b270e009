"""Attention of many rows of one prompt: a tile of rows walks their keys together, one block after another.

The keys of a block are laid across the lanes of vectors once for all rows and heads of the tile. Each row's scores,
weights and sums go through the operations of attention_numba in the same order, so the bits are those of a row alone.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from augury.kernels.attend_parts_numba import begin, divide, list_keys, weigh
from augury.kernels.numba_options import ORDERED
from augury.kernels.room_numba import aligned, put
from augury.kernels.simd import axpy4
from augury.kernels.simd_across import CHUNK, across_scores, lay_across
from augury.kernels.simd_quads import QUAD, quad_gather
from augury.kernels.simd_softmax import KEY_BLOCK
from augury.kernels.vectors import LANES

MOST_ROWS = 64  # of a tile: with three heads each their queries, sums and scores take 144 KB
LEAST_ROWS = 8  # with fewer, laying keys across lanes costs more than it saves


@njit(**ORDERED)
def rows_of_tile(r, rows, window, key_dim, value_dim):
    """Rows from r on that can be a tile: of one slot and without ancestors, each seeing no less than the one before."""
    _, slots, context, _, ancestors, _, _ = rows
    if window != 0 or key_dim % CHUNK or value_dim % CHUNK or ancestors[r] != 0:
        return 0
    last, end = r + 1, min(r + MOST_ROWS, len(slots))
    while last < end and slots[last] == slots[r] and ancestors[last] == 0 and context[last] >= context[last - 1]:
        last += 1
    number = (last - r) // QUAD * QUAD
    return number if number >= LEAST_ROWS else 0


@njit(**ORDERED)
def _gather_rest(out, o, size, scores, s, since, seen, values, head, width, keys, start):
    """Add the values of one line's keys from `since` on, weighted; the last key pads the last group of four."""
    for j in range(since, seen, 4):
        v0, v1 = keys[start + j] * width + head, keys[start + min(j + 1, seen - 1)] * width + head
        v2 = keys[start + min(j + 2, seen - 1)] * width + head
        v3 = keys[start + min(j + 3, seen - 1)] * width + head
        axpy4(out, o, scores, s + j, values, v0, v1, v2, v3, size)


@njit(**ORDERED)
def _gather(outs, size, scores, values, head, width, keys, start, counts, group, first, lines):
    """Add the values of a block to the sums of lines from `first` on; see _tile_block."""
    line = first
    while line < lines:
        four = line + QUAD <= lines
        together = min(KEY_BLOCK, counts[line // group] - start) // 4 * 4 if four else 0
        if together > 0:
            for d in range(0, size, QUAD * LANES):
                o, s = line * size + d, line * KEY_BLOCK
                quad_gather(outs, o, size, scores, s, KEY_BLOCK, values, head + d, width, keys, start, together)
        for own in range(line, line + (QUAD if four else 1)):
            seen, s = min(KEY_BLOCK, counts[own // group] - start), own * KEY_BLOCK
            _gather_rest(outs, own * size, size, scores, s, together, seen, values, head, width, keys, start)
        line += QUAD if four else 1


@njit(**ORDERED)
def _score(queries, size, cache, head, width, keys, start, across, scores, first, lines):
    """Scores of all lines from `first` on, and perhaps the one before, with a block of keys."""
    for j in range(0, KEY_BLOCK, LANES):
        lay_across(cache, head, width, keys, start + j, size, across, j)
    for j in range(0, KEY_BLOCK, 2 * LANES):
        for line in range(first // 2 * 2, lines, 2):
            across_scores(queries, line * size, size, across, j, scores, line * KEY_BLOCK + j)


@njit(**ORDERED)
def _list_whole_blocks(r, rows, block_size, keys):
    """List the keys that row r sees, padded with the last one to whole blocks; returns their number without padding."""
    _, slots, context, _, _, tables, first = rows
    count = list_keys(tables, slots[r], block_size, first[0], context[r], 0, 0, 0, 0, keys)
    for pad in range(count, -(-count // KEY_BLOCK) * KEY_BLOCK):
        keys[pad] = keys[count - 1]
    return count


@njit(**ORDERED)
def attend_tile(r, number, kv_head, q, key_cache, value_cache, rows, block_size, scale, softcap, sinks, out):
    """Attention of `number` rows in all query heads of one kv head; a line is one head of one row."""
    _, _, context, _, _, _, first = rows
    kv_heads, key_dim, value_dim = key_cache.shape[1], key_cache.shape[2], value_cache.shape[2]
    group = out.shape[1] // (value_dim * kv_heads)
    lines, flat_keys, flat_values = number * group, key_cache.reshape(-1), value_cache.reshape(-1)
    keys = np.empty(max(0, context[r + number - 1]) + KEY_BLOCK, np.int64)
    count, counts = _list_whole_blocks(r + number - 1, rows, block_size, keys), np.empty(number, np.int64)
    queries, sums, scores = aligned(lines * key_dim), aligned(lines * value_dim), aligned(lines * KEY_BLOCK)
    across, tops, totals = aligned(KEY_BLOCK * key_dim), np.empty(lines, np.float32), np.empty(lines, np.float32)
    sums[:] = np.float32(0.0)
    for i in range(number):
        counts[i] = max(0, context[r + i] - first[0])
        line, own = i * group, slice(i * group, (i + 1) * group)
        put(queries[line * key_dim : (line + group) * key_dim], q[r + i, kv_head * group * key_dim :])
        begin(tops[own], totals[own], sinks, kv_head * group)
    row = 0
    for start in range(0, count, KEY_BLOCK):
        while counts[row] <= start:
            row += 1
        line, width, head = row * group, kv_heads * key_dim, kv_head * key_dim
        _score(queries, key_dim, flat_keys, head, width, keys, start, across, scores, line, lines)
        for n in range(line, lines):
            seen = min(KEY_BLOCK, counts[n // group] - start)
            weigh(scores, n * KEY_BLOCK, seen, scale, softcap, tops, totals, n, sums, n * value_dim, value_dim)
        width, head = kv_heads * value_dim, kv_head * value_dim
        _gather(sums, value_dim, scores, flat_values, head, width, keys, start, counts, group, line, lines)
    for n in range(lines):
        o = (kv_head * group + n % group) * value_dim
        divide(sums, n * value_dim, totals[n], out[r + n // group], o, value_dim)
