"""Matrix products on a CPU: a few rows at the speed at which weights can be read, many at that of the vendor's library.

Weights are read once for all rows, four lines at a time, float32 or bf16 (as 16-bit integers); sums are float32. A
row's sums are taken in one fixed order, so its result is the same among any other rows, few or many.
"""

from __future__ import annotations

import numpy as np
from numba import njit, prange

from augury.kernels.numba_options import OPTIONS
from augury.kernels.room_numba import aligned
from augury.kernels.simd import tile1, tile2, tile4
from augury.kernels.simd_quads import QUAD, SUMS, copy_line, quad_first, quad_last, quad_more, quad_whole

PANEL = 16  # rows of x worked on at a time, so that they stay in the first-level cache with the weights
MANY_ROWS = 16  # from here on blocks of weights are copied to where the cache holds them
LINES = 12  # lines of weights in a block
CHUNK = 576  # elements of a line that are worked on at a time: a block of them fills two thirds of a first-level cache


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
    """Output columns first .. last-1, four at a time; the last four may rewrite columns with the same bits."""
    rows, width, columns = x.shape[0], x.shape[1], weight.shape[0]
    flat_x, flat_weight, flat_out = x.reshape(-1), weight.reshape(-1), out.reshape(-1)
    for panel in range(0, rows, PANEL):
        end = min(rows, panel + PANEL)
        for begin in range(first, last, 4):
            column = min(begin, columns - 4)
            tile_rows(flat_x, panel, end, flat_weight, column * width, width, flat_out, column, columns)


@njit(**OPTIONS)
def chunk_of(width):
    """Elements in each of the equal parts that a line is worked on in; the last may be shorter."""
    parts = -(-width // CHUNK)
    return -(-width // (64 * parts)) * 64


@njit(inline="always", **OPTIONS)
def _quad(x, x0, width, lines, line, count, sums, place, out, o, columns, first, last):
    if first and last:
        quad_whole(x, x0, width, lines, line, count, count, sums, place, out, o, columns)
    elif first:
        quad_first(x, x0, width, lines, line, count, count, sums, place, out, o, columns)
    elif last:
        quad_last(x, x0, width, lines, line, count, count, sums, place, out, o, columns)
    else:
        quad_more(x, x0, width, lines, line, count, count, sums, place, out, o, columns)


@njit(**OPTIONS)
def chunk_product(x, start, count, lines, sums, out, column):
    """All rows of x times a block of weights, over the `count` elements from `start` on, which are what `lines` holds.

    A sum stops where its chunk ends and continues in the next, so its order is that of a whole line.
    """
    rows, width, columns = x.shape[0], x.shape[1], out.shape[1]
    flat_x, flat_out = x.reshape(-1), out.reshape(-1)
    for quad in range(-(-rows // QUAD)):
        row = min(quad * QUAD, rows - QUAD)  # the last four may be worked on twice, with the same bits
        for line in range(0, LINES, QUAD):
            _quad(
                flat_x,
                row * width + start,
                width,
                lines,
                line * count,
                count,
                sums,
                (quad * LINES + line) // QUAD * SUMS,
                flat_out,
                row * columns + column + line,
                columns,
                start == 0,
                start + count == width,
            )


@njit(**OPTIONS)
def block_scratch(rows, size):
    """Room for a chunk of a block of weights, and for the unfinished sums of all rows."""
    return aligned(LINES * size), aligned(-(-rows // QUAD) * LINES // QUAD * SUMS)


@njit(**OPTIONS)
def _blocks(x, weight, first, last, out):
    """Output columns first .. last-1 of many rows, a block at a time."""
    width, columns, size = x.shape[1], weight.shape[0], chunk_of(x.shape[1])
    (lines, sums), flat_weight = block_scratch(x.shape[0], size), weight.reshape(-1)
    for begin in range(first, last, LINES):
        column = min(begin, columns - LINES)
        for start in range(0, width, size):
            count = min(size, width - start)
            for line in range(LINES):
                copy_line(flat_weight, (column + line) * width + start, count, lines, line * count)
            chunk_product(x, start, count, lines, sums, out, column)


@njit(**OPTIONS)
def add_bias(out, bias):
    """Add a bias, if it has any elements; after all shares, because a last block may rewrite columns of another."""
    if bias.size > 0:
        for r in range(out.shape[0]):
            for column in range(out.shape[1]):
                out[r, column] += bias[column]


@njit(**OPTIONS)
def columns_of(thread, threads, columns, step):
    """The columns of one thread, in whole steps: first, and one past the last."""
    share = -(-columns // (step * threads)) * step
    return min(columns, thread * share), min(columns, (thread + 1) * share)


@njit(**OPTIONS)
def share_of_product(thread, threads, x, weight, out):
    """One thread's share of out [R, out] = x [R, in] times weight [out, in]."""
    many = x.shape[0] >= MANY_ROWS and weight.shape[0] >= LINES
    first, last = columns_of(thread, threads, weight.shape[0], LINES if many else 4)
    if many:
        _blocks(x, weight, first, last, out)
    else:
        _columns(x, weight, first, last, out)


@njit(**OPTIONS)
def linear_alone(x, weight, bias, out):
    """out = x times weight, plus bias if it has any elements, on one thread."""
    share_of_product(0, 1, x, weight, out)
    add_bias(out, bias)


@njit(parallel=True, **OPTIONS)
def linear_parallel(threads, x, weight, bias, out):
    """The product on several threads."""
    for share in prange(threads):
        share_of_product(np.int64(share), threads, x, weight, out)
    add_bias(out, bias)
