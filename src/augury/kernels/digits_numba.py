"""Matrix products with packed weights in integers; see simd_digits for the arithmetic.

A row's result depends on no other row, on no split over threads and on no shape of tiles: integer sums have no order,
and the sums of blocks are added in one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, prange

from augury.kernels.attention_numba import OPTIONS
from augury.kernels.machine import LINES
from augury.kernels.matrix_numba import add_bias, columns_of
from augury.kernels.simd_digits import FACTORS, make_split, make_tile
from augury.kernels.tiles import BLOCK

EXACT, FAST = 3, 1  # digits of an activation
STEADY = {**OPTIONS, "fastmath": False}


def _make(digits: int) -> Any:
    """The product for activations of so many digits."""
    split = make_split(digits)
    tile4, tile2, tile1, pair1 = (make_tile(*shape, digits) for shape in ((4, 1), (2, 1), (1, 1), (1, 2)))

    @njit(**STEADY)
    def in_digits(x):
        """Rows as digits and factors, both flat."""
        blocks = x.size // BLOCK
        flat, numbers, factors = (
            x.reshape(-1),
            np.empty(x.size * digits, np.int8),
            np.empty(blocks * FACTORS, np.float32),
        )
        for block in range(blocks):
            split(flat, block * BLOCK, numbers, block * digits * BLOCK, factors, block * FACTORS)
        return numbers, factors

    @njit(**STEADY)
    def tile_rows(codes, scales, tile, pair, numbers, factors, rows, blocks, out, o, apart):
        """All rows times one tile, or two."""
        r = 0
        while r + 4 <= rows:
            tile4(codes, scales, tile, numbers, factors, r, blocks, out, o + r * apart, apart)
            if pair:
                tile4(codes, scales, tile + 1, numbers, factors, r, blocks, out, o + r * apart + LINES, apart)
            r += 4
        if r + 2 <= rows:
            tile2(codes, scales, tile, numbers, factors, r, blocks, out, o + r * apart, apart)
            if pair:
                tile2(codes, scales, tile + 1, numbers, factors, r, blocks, out, o + r * apart + LINES, apart)
            r += 2
        if r < rows:
            if pair:
                pair1(codes, scales, tile, numbers, factors, r, blocks, out, o + r * apart, apart)
            else:
                tile1(codes, scales, tile, numbers, factors, r, blocks, out, o + r * apart, apart)

    @njit(**STEADY)
    def share(first, last, codes, scales, numbers, factors, out):
        """Output columns first .. last-1; first is where a tile begins."""
        rows, columns, blocks = out.shape[0], out.shape[1], codes.shape[1]
        flat_codes, flat_scales, flat_out = codes.reshape(-1), scales.reshape(-1), out.reshape(-1)
        column = first
        while column + LINES <= last:
            pair = column + 2 * LINES <= last
            tile_rows(
                flat_codes,
                flat_scales,
                column // LINES,
                pair,
                numbers,
                factors,
                rows,
                blocks,
                flat_out,
                column,
                columns,
            )
            column += 2 * LINES if pair else LINES
        if column < last:  # a tile that is filled up with lines of zeros
            room = np.empty((rows, LINES), np.float32)
            tile_rows(
                flat_codes,
                flat_scales,
                column // LINES,
                False,
                numbers,
                factors,
                rows,
                blocks,
                room.reshape(-1),
                0,
                LINES,
            )
            for r in range(rows):
                out[r, column:last] = room[r, : last - column]

    @njit(parallel=True, **STEADY)
    def product(threads, x, codes, scales, bias, out):
        """out [R, lines] = x [R, width] times the matrix, plus bias if it has any elements."""
        numbers, factors = in_digits(x)
        for thread in prange(threads):
            first, last = columns_of(np.int64(thread), threads, out.shape[1], 2 * LINES)
            share(first, last, codes, scales, numbers, factors, out)
            add_bias(out, bias, first, last)

    return product


linear_exact, linear_fast = _make(EXACT), _make(FAST)
