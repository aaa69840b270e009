"""Decoder layers of packed matrices on a CPU, in one call, by threads that stay together throughout.

With few rows, a layer's ten steps take no longer than Python takes to start them, and waking threads for each takes
longer than most of them. Prompts run here too: code that is compiled into another function may be vectorised in
another way, and a row's bits must not depend on the rows that share its pass.
"""

from __future__ import annotations

import numpy as np
from numba import njit, prange

from augury.kernels.attention_numba import attend_share
from augury.kernels.crew_numba import all_here, left_alone, meet, new_crew
from augury.kernels.digits_numba import STEADY, columns_share, digits_share
from augury.kernels.fused_numba import add_rms_norm, rotate_and_store, silu_mul
from augury.kernels.low_rank_numba import low_rank_share
from augury.kernels.placed_numba import placed
from augury.kernels.room_numba import put
from augury.kernels.simd_digits import FACTORS
from augury.kernels.unpack import BLOCK

PANEL_ROWS = 128  # rows at a time, so that they stay in the second-level cache

# Columns of a layer's row in the table of addresses; KEPT is the number its residual stream is kept under, or -1.
MATRICES, NORMS, STACKS, ROTARY, CACHE, KEPT, COLUMNS = 0, 8, 12, 24, 26, 28, 29

_NO_SINKS = np.empty(0, np.float32)


@njit(**STEADY)
def _product(thread, threads, crew, met, x, matrix, digits, room, stack, adapters, out):
    """One thread's part of x times a matrix (tiles, bias), and of what each row's adapter adds; all meet at its end."""
    (tiles, bias), (numbers, factors), rows = matrix, room, x.shape[0]
    panels = -(-rows // PANEL_ROWS)
    for n in range(panels):
        first, last = rows * n // panels, rows * (n + 1) // panels
        digits_share(thread, threads, x[first:last], digits, numbers, factors)
        met = meet(crew, threads, met)
        columns_share(thread, threads, tiles, numbers, factors, digits, bias, out[first:last])
        met = meet(crew, threads, met)
    if adapters.size > 0:
        low_rank_share(thread, threads, x, stack, adapters, out)
        met = meet(crew, threads, met)
    return met


@njit(**STEADY)
def _share(
    thread, threads, crew, x, residual, table, matrices, norms, digits, adapters, stacks, rotary, cache, view, write,
    shape, rooms, streams,
):  # fmt: skip
    """One thread's share of all layers; see run_layers."""
    block_size, heads, scale, window, eps = shape
    (qkv, mixed, middle, normed, gates, gated, stream, following), room = rooms[:8], rooms[8:]
    first, last, met = x.shape[0] * thread // threads, x.shape[0] * (thread + 1) // threads, np.int64(0)
    for n in range(len(table)):
        weights, added = placed(matrices, table[n], MATRICES), placed(stacks, table[n], STACKS)
        mlp_norm, next_norm, q_norm, k_norm = placed(norms, table[n], NORMS)
        (cos, sin), (keys, values) = placed(rotary, table[n], ROTARY), placed(cache, table[n], CACHE)
        met = _product(thread, threads, crew, met, x, weights[:2], digits, room, added[:3], adapters, qkv)
        rotate_and_store(
            qkv[first:last], heads, view[0][first:last], write[first:last], cos, sin, keys, values, q_norm, k_norm, eps
        )
        met = meet(crew, threads, met)
        attend_share(thread, threads, qkv, keys, values, view, block_size, scale, window, 0.0, _NO_SINKS, mixed)
        met = meet(crew, threads, met)
        met = _product(thread, threads, crew, met, mixed, weights[2:4], digits, room, added[3:6], adapters, middle)
        add_rms_norm(middle[first:last], residual[first:last], mlp_norm, eps, normed[first:last])
        met = meet(crew, threads, met)
        met = _product(thread, threads, crew, met, normed, weights[4:6], digits, room, added[6:9], adapters, gates)
        silu_mul(gates[first:last], gated[first:last])
        met = meet(crew, threads, met)
        met = _product(thread, threads, crew, met, gated, weights[6:], digits, room, added[9:], adapters, stream)
        add_rms_norm(stream[first:last], middle[first:last], next_norm, eps, following[first:last])
        if table[n, KEPT] >= 0:
            for row in range(first, last):
                put(streams[table[n, KEPT], row], stream[row])
        x, residual = following, stream
        met = meet(crew, threads, met)


@njit(**STEADY)
def _rooms(rows, given, hidden, width, heads, inner, digits):
    """Buffers for the results of a layer's steps, by its widths, and for the digits of a panel."""
    room = min(rows, PANEL_ROWS) * max(given, hidden, heads, inner)
    return (
        np.empty((rows, width), np.float32),
        np.empty((rows, heads), np.float32),
        np.empty((rows, hidden), np.float32),
        np.empty((rows, hidden), np.float32),
        np.empty((rows, 2 * inner), np.float32),
        np.empty((rows, inner), np.float32),
        np.empty((rows, hidden), np.float32),
        np.empty((rows, hidden), np.float32),
        np.empty(room * len(digits), np.int8),
        np.empty(room // BLOCK * FACTORS, np.float32),
    )


@njit(parallel=True, **STEADY)
def run_layers(
    threads, x, residual, table, matrices, norms, digits, adapters, stacks, rotary, cache, view, write, shape,
    streams,
):  # fmt: skip
    """The normed input of the layer after these, and the residual stream that it is the norm of.

    The arrays are the first layer's; `table` [layers, COLUMNS] says where each layer's are, of the same shapes, and
    `streams` receives those that are kept. Tuples are flat, because a parallel loop takes no others: tiles and bias of
    four matrices, and the three parts of their adapters.
    """
    keys, hidden, inner, heads = cache[0], residual.shape[1], matrices[6].shape[1] * BLOCK, matrices[2].shape[1] * BLOCK
    width, crew = (shape[1] + 2 * keys.shape[1]) * keys.shape[2], new_crew()
    rooms = _rooms(x.shape[0], x.shape[1], hidden, width, heads, inner, digits)
    if threads > 1:
        for share in prange(threads):
            if all_here(crew, threads):
                _share(
                    np.int64(share), threads, crew, x, residual, table, matrices, norms, digits, adapters, stacks,
                    rotary, cache, view, write, shape, rooms, streams,
                )  # fmt: skip
    if threads == 1 or left_alone(crew):
        one = np.int64(1)  # a literal would have all of it compiled once more
        _share(
            one - 1, one, crew, x, residual, table, matrices, norms, digits, adapters, stacks, rotary, cache, view,
            write, shape, rooms, streams,
        )  # fmt: skip
    return rooms[7], rooms[6]
