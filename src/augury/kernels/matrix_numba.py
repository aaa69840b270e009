"""Matrix products of a few rows on a CPU, at the speed at which the weights can be read.

Weights are read once for all rows, four lines at a time, float32 or bf16 (as 16-bit integers); sums are float32. A
row's sums are taken in one fixed order, so its result is the same among any other rows.
"""

from __future__ import annotations

from numba import njit, prange

from augury.kernels.attention_numba import OPTIONS
from augury.kernels.simd import tile1, tile2, tile4

PANEL = 16  # rows of x worked on at a time, so that they stay in the first-level cache beside the weights


@njit(**OPTIONS)
def tile_rows(x, first, last, weights, line, width, out, column, columns):
    """Rows first .. last-1 times four lines of weights, of which the first begins at `line`; all arrays flat."""
    r = first
    while r + 4 <= last:
        tile4(x, r * width, weights, line, width, out, r * columns + column, columns)
        r += 4
    if r + 2 <= last:
        tile2(x, r * width, weights, line, width, out, r * columns + column, columns)
        r += 2
    if r < last:
        tile1(x, r * width, weights, line, width, out, r * columns + column, columns)


@njit(**OPTIONS)
def _columns(x, weight, first, last, out):
    """Output columns first .. last-1, four at a time; the last four may write again what is there, the same bits."""
    rows, width, columns = x.shape[0], x.shape[1], weight.shape[0]
    flat_x, flat_weight, flat_out = x.reshape(-1), weight.reshape(-1), out.reshape(-1)
    for panel in range(0, rows, PANEL):
        end = min(rows, panel + PANEL)
        for begin in range(first, last, 4):
            column = min(begin, columns - 4)
            tile_rows(flat_x, panel, end, flat_weight, column * width, width, flat_out, column, columns)


@njit(**OPTIONS)
def add_bias(out, bias):
    """Add a bias to every row, if it has any elements."""
    if bias.size > 0:
        for r in range(out.shape[0]):
            for column in range(out.shape[1]):
                out[r, column] += bias[column]


@njit(**OPTIONS)
def linear_serial(x, weight, bias, out):
    """out [R, out] = x [R, in] times weight [out, in], plus bias if it has any elements."""
    _columns(x, weight, 0, weight.shape[0], out)
    add_bias(out, bias)


@njit(parallel=True, **OPTIONS)
def linear_parallel(x, weight, bias, out, threads):
    """The same, output columns shared out among threads in whole fours."""
    columns = weight.shape[0]
    share = -(-columns // (4 * threads)) * 4
    for thread in prange(threads):
        _columns(x, weight, thread * share, min(columns, (thread + 1) * share), out)
    add_bias(out, bias)
