"""Matrix products with packed weights on a CPU: a fifth of the memory is read, the numbers are the same.

Four lines of weights at a time are unpacked into the first-level cache, and from there on the loop is that of
matrix_numba: the same tiles in the same order, so a packed matrix gives the bits of its float32 twin.
"""

from __future__ import annotations

import numpy as np
from numba import njit, prange

from augury.kernels.attention_numba import OPTIONS
from augury.kernels.matrix_numba import add_bias, tile_rows
from augury.kernels.simd import unpack

BLOCK = 32  # weights that share a scale and a shift


@njit(**OPTIONS)
def _columns(x, codes, scales, first, last, out):
    """Output columns first .. last-1; see matrix_numba._columns."""
    rows, width, columns = x.shape[0], x.shape[1], codes.shape[0]
    flat_x, flat_codes, flat_scales, flat_out = x.reshape(-1), codes.reshape(-1), scales.reshape(-1), out.reshape(-1)
    blocks = width // BLOCK
    lines = np.empty(8 * width, np.float32)  # four lines, and four that a tile's prefetch may ask for
    for begin in range(first, last, 4):
        column = min(begin, columns - 4)
        for line in range(column, column + 4):
            start = (line - column) * width
            unpack(flat_codes, line * codes.shape[1], flat_scales, 2 * line * blocks, blocks, lines, start)
        tile_rows(flat_x, 0, rows, lines, 0, width, flat_out, column, columns)


@njit(parallel=True, **OPTIONS)
def linear_packed(x, codes, scales, bias, out, threads):
    """out [R, out] = x [R, in] times the packed matrix, plus bias if it has any elements."""
    columns = codes.shape[0]
    share = -(-columns // (4 * threads)) * 4
    for thread in prange(threads):
        _columns(x, codes, scales, thread * share, min(columns, (thread + 1) * share), out)
    add_bias(out, bias)

