"""Matrix products with packed weights on a CPU: a fifth of the memory is read, the numbers are the same.

A few lines of weights at a time are unpacked into the first-level cache, and from there on the loops are those of
matrix_numba: the same sums in the same order, so a packed matrix gives the bits of its float32 twin.
"""

from __future__ import annotations

import numpy as np
from numba import njit, prange

from augury.kernels.matrix_numba import LINES, add_bias, block_scratch, chunk_of, chunk_product, columns_of, tile_rows
from augury.kernels.numba_options import OPTIONS
from augury.kernels.room_numba import aligned
from augury.kernels.simd_unpack import unpack
from augury.kernels.unpack import BLOCK

MANY_ROWS = 8  # from here on weights are unpacked in blocks for the cache: copying pays later, but unpacking is a must


@njit(**OPTIONS)
def _columns(x, codes, scales, first, last, out):
    """Output columns first .. last-1; see matrix_numba._columns."""
    rows, width, columns = x.shape[0], x.shape[1], codes.shape[0]
    flat_x, flat_codes, flat_scales, flat_out = x.reshape(-1), codes.reshape(-1), scales.reshape(-1), out.reshape(-1)
    blocks, factors = width // BLOCK, scales.shape[1] * scales.shape[2]
    lines = aligned(8 * width)  # four lines, and four that a tile's prefetch may ask for
    for begin in range(first, last, 4):
        column = min(begin, columns - 4)
        for line in range(column, column + 4):
            start = (line - column) * width
            unpack(flat_codes, line * codes.shape[1], flat_scales, line * factors, blocks, lines, start)
        tile_rows(flat_x, 0, rows, lines, 0, width, flat_out, column, columns)


@njit(**OPTIONS)
def _blocks(x, codes, scales, first, last, out):
    """Output columns first .. last-1 of many rows; see matrix_numba._blocks."""
    width, columns, size = x.shape[1], codes.shape[0], chunk_of(x.shape[1])
    flat_codes, flat_scales = codes.reshape(-1), scales.reshape(-1)
    lines, sums = block_scratch(x.shape[0], size)
    line_bytes, line_blocks = codes.shape[1], width // BLOCK
    for begin in range(first, last, LINES):
        column = min(begin, columns - LINES)
        for start in range(0, width, size):
            count = min(size, width - start)
            for line in range(LINES):
                code = (column + line) * line_bytes + start * line_bytes // width
                scale = scales.shape[2] * ((column + line) * line_blocks + start // BLOCK)
                unpack(flat_codes, code, flat_scales, scale, count // BLOCK, lines, line * count)
            chunk_product(x, start, count, lines, sums, out, column)


@njit(**OPTIONS)
def _share(thread, threads, x, codes, scales, out):
    """One thread's share of out [R, out] = x [R, in] times the packed matrix."""
    many = x.shape[0] >= MANY_ROWS and codes.shape[0] >= LINES
    first, last = columns_of(thread, threads, codes.shape[0], LINES if many else 4)
    if many:
        _blocks(x, codes, scales, first, last, out)
    else:
        _columns(x, codes, scales, first, last, out)


@njit(parallel=True, **OPTIONS)
def linear_packed(threads, x, codes, scales, bias, out):
    """All shares in parallel, plus bias if it has any elements."""
    for share in prange(threads):
        _share(np.int64(share), threads, x, codes, scales, out)
    add_bias(out, bias)
