"""Matrix products with packed weights in integers; see simd_digits for the arithmetic.

A row's result depends on no other row, on no split over threads and on no shape of tiles: integer sums have no order,
and the sums of blocks are added in one.
"""

from __future__ import annotations

import numpy as np
from numba import njit, prange

from augury.kernels.attention_numba import OPTIONS
from augury.kernels.machine import LINES
from augury.kernels.matrix_numba import add_bias, columns_of
from augury.kernels.simd_digits import FACTORS, pair1, split, tile1, tile2, tile4
from augury.kernels.tiles import BLOCK

# The digits of an activation: a tuple, because loops are compiled for its length.
EXACT, FAST = (0, 1, 2), (0,)
STEADY = {**OPTIONS, "fastmath": False}


@njit(**STEADY)
def _in_digits(x, digits):
    """Rows as digits and factors, both flat."""
    blocks = x.size // BLOCK
    numbers = np.empty(x.size * len(digits), np.int8)
    factors, flat = np.empty(blocks * FACTORS, np.float32), x.reshape(-1)
    for block in range(blocks):
        split(flat, block, numbers, factors, digits)
    return numbers, factors


@njit(**STEADY)
def _tile_rows(codes, scales, tile, pair, numbers, factors, rows, blocks, digits, out, o, apart):
    """All rows times one tile, or two."""
    r = 0
    while r + 4 <= rows:
        tile4(codes, scales, tile, numbers, factors, r, blocks, digits, out, o + r * apart, apart)
        if pair:
            tile4(codes, scales, tile + 1, numbers, factors, r, blocks, digits, out, o + r * apart + LINES, apart)
        r += 4
    if r + 2 <= rows:
        tile2(codes, scales, tile, numbers, factors, r, blocks, digits, out, o + r * apart, apart)
        if pair:
            tile2(codes, scales, tile + 1, numbers, factors, r, blocks, digits, out, o + r * apart + LINES, apart)
        r += 2
    if r < rows:
        if pair:
            pair1(codes, scales, tile, numbers, factors, r, blocks, digits, out, o + r * apart, apart)
        else:
            tile1(codes, scales, tile, numbers, factors, r, blocks, digits, out, o + r * apart, apart)


@njit(**STEADY)
def _columns(first, last, codes, scales, numbers, factors, digits, out):
    """Output columns first .. last-1, of which the first begins a tile."""
    rows, columns, blocks = out.shape[0], out.shape[1], codes.shape[1]
    flat_codes, flat_scales, flat_out, column = codes.reshape(-1), scales.reshape(-1), out.reshape(-1), first
    while column < last:
        whole, pair = column + LINES <= last, column + 2 * LINES <= last
        # A last tile is filled up with lines of zeros, which have no place in the result.
        into = flat_out if whole else np.empty(rows * LINES, np.float32)
        start, apart = (column, columns) if whole else (0, LINES)
        tile = column // LINES
        _tile_rows(flat_codes, flat_scales, tile, pair, numbers, factors, rows, blocks, digits, into, start, apart)
        if not whole:
            for r in range(rows):
                out[r, column:last] = into[r * LINES : r * LINES + last - column]
        column += 2 * LINES if pair else LINES


@njit(parallel=True, **STEADY)
def linear_digits(threads, x, codes, scales, digits, bias, out):
    """out [R, lines] = x [R, width] times the matrix, plus bias if it has any elements."""
    numbers, factors = _in_digits(x, digits)
    for share in prange(threads):
        first, last = columns_of(np.int64(share), threads, out.shape[1], 2 * LINES)
        _columns(first, last, codes, scales, numbers, factors, digits, out)
    add_bias(out, bias)
