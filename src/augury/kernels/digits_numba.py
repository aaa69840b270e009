"""Matrix products with packed weights in integers; see simd_digits for the arithmetic.

A row's result depends on no other row, on no split over threads and on no shape of tiles: integer sums have no order,
and the sums of blocks are added in one.
"""

from __future__ import annotations

import numpy as np
from numba import njit, prange

from augury.kernels.machine import LINES
from augury.kernels.matrix_numba import columns_of
from augury.kernels.numba_options import OPTIONS
from augury.kernels.room_numba import put
from augury.kernels.simd_digits import FACTORS, half3, half4, split, tile1, tile2
from augury.kernels.tiles import TILE
from augury.kernels.unpack import BLOCK

# The digits of an activation: a tuple, because loops are compiled for its length.
EXACT, FAST = (0, 1, 2), (0,)
STEADY = {**OPTIONS, "fastmath": False}
PARALLEL_BLOCKS = 512  # of activations, from which on waking threads takes less time than they save


@njit(**STEADY)
def _in_digits(flat, first, last, digits, numbers, factors):
    """Split blocks first .. last-1 of the activations into digits and factors; all arrays are flat."""
    for block in range(first, last):
        split(flat, block, numbers, factors, digits)


@njit(**STEADY)
def _tile_rows(tiles, tile, numbers, factors, rows, blocks, digits, out, o, apart):
    """All rows times one tile, up to four rows at a time."""
    r = 0
    while r + 4 <= rows:
        for half in range(2):
            half4(tiles, tile, half, numbers, factors, r, blocks, digits, out, o + r * apart + half * LINES, apart)
        r += 4
    if r + 3 <= rows:
        for half in range(2):
            half3(tiles, tile, half, numbers, factors, r, blocks, digits, out, o + r * apart + half * LINES, apart)
        r += 3
    if r + 2 <= rows:
        tile2(tiles, tile, 0, numbers, factors, r, blocks, digits, out, o + r * apart, apart)
        r += 2
    if r < rows:
        tile1(tiles, tile, 0, numbers, factors, r, blocks, digits, out, o + r * apart, apart)


@njit(**STEADY)
def _columns(first, last, tiles, numbers, factors, digits, out):
    """Output columns first .. last-1, of which the first begins a tile."""
    rows, columns, blocks = out.shape[0], out.shape[1], tiles.shape[1]
    flat_tiles, flat_out = tiles.reshape(-1), out.reshape(-1)
    for column in range(first, last, TILE):
        tile, end = column // TILE, min(column + TILE, last)
        if end == column + TILE:
            _tile_rows(flat_tiles, tile, numbers, factors, rows, blocks, digits, flat_out, column, columns)
        else:  # a last tile is filled up with lines of zeros, which have no place in the result
            room = np.empty(rows * TILE, np.float32)
            _tile_rows(flat_tiles, tile, numbers, factors, rows, blocks, digits, room, 0, TILE)
            for r in range(rows):
                put(out[r, column:end], room[r * TILE :])


@njit(**STEADY)
def digits_share(thread, threads, x, digits, numbers, factors):
    """One thread's part of turning all rows into digits and factors."""
    blocks = x.size // BLOCK
    _in_digits(x.reshape(-1), blocks * thread // threads, blocks * (thread + 1) // threads, digits, numbers, factors)


@njit(**STEADY)
def columns_share(thread, threads, tiles, numbers, factors, digits, bias, out):
    """One thread's columns of the rows, in digits, times the matrix, plus bias if it has any elements."""
    first, last = columns_of(thread, threads, out.shape[1], TILE)
    if first < last:
        _columns(first, last, tiles, numbers, factors, digits, out)
    if bias.size > 0:
        for r in range(out.shape[0]):
            for column in range(first, last):
                out[r, column] += bias[column]


@njit(parallel=True, **STEADY)
def linear_digits(threads, x, tiles, digits, bias, out):
    """out [R, lines] = x [R, width] times the matrix, plus bias if it has any elements."""
    blocks, flat = x.size // BLOCK, x.reshape(-1)
    numbers, factors = np.empty(x.size * len(digits), np.int8), np.empty(blocks * FACTORS, np.float32)
    if blocks < PARALLEL_BLOCKS:
        _in_digits(flat, 0, blocks, digits, numbers, factors)
    else:
        for share in prange(threads):
            digits_share(np.int64(share), threads, x, digits, numbers, factors)
    for share in prange(threads):
        columns_share(np.int64(share), threads, tiles, numbers, factors, digits, bias, out)
