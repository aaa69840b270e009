"""Low-rank additions on a CPU: each row with its own adapter's factors, rows without one untouched.

The factors of several adapters do not fit in any cache, so every pass reads them from memory: rows are shared out
among threads, and four lines of a factor are read at a time.
"""

from __future__ import annotations

import numpy as np
from numba import njit, prange

from augury.kernels.digits_numba import STEADY
from augury.kernels.simd import axpy4
from augury.kernels.vectors import LANES

FEW = 4  # lines that are added at a time; ranks are filled up to a multiple


@njit(**STEADY)
def _add_lines(weights, w, count, lines, start, apart, out, o, size):
    """out[o : o + size] += sum over t < count of weights[w + t] * lines[start + t * apart : ... + size]; all flat."""
    vectors = size // LANES * LANES
    four = count // FEW * FEW if vectors > 0 else 0
    for t in range(0, four, FEW):
        line = start + t * apart
        axpy4(out, o, weights, w + t, lines, line, line + apart, line + 2 * apart, line + 3 * apart, vectors)
    for t in range(count):
        line = start + t * apart
        for i in range(vectors if t < four else 0, size):
            out[o + i] += weights[w + t] * lines[line + i]


@njit(**STEADY)
def _add_rows(first, last, x, down, up, bounds, adapters, out):
    """Rows first .. last-1. Sums run in one order for every row, so its bits do not depend on other rows."""
    width, columns, rank, lines = down.shape[1], down.shape[2], up.shape[1], up.shape[2]
    inner, flat_x, flat_out = np.empty(columns, np.float32), x.reshape(-1), out.reshape(-1)
    flat_down, flat_up = down.reshape(-1), up.reshape(-1)
    for row in range(first, last):
        place = adapters[row] - 1
        if place < 0:
            continue
        inner[:] = 0.0
        _add_lines(flat_x, row * width, width, flat_down, place * width * columns, columns, inner, 0, columns)
        begin = 0
        for part in range(len(bounds)):
            size, start = bounds[part] - begin, place * rank * lines + begin
            _add_lines(inner, part * rank, rank, flat_up, start, lines, flat_out, row * lines + begin, size)
            begin = bounds[part]


@njit(**STEADY)
def low_rank_share(thread, threads, x, stack, adapters, out):
    """One thread's share of add_low_rank."""
    down, up, bounds = stack
    first, last = x.shape[0] * thread // threads, x.shape[0] * (thread + 1) // threads
    _add_rows(first, last, x, down, up, bounds, adapters, out)


@njit(parallel=True, **STEADY)
def _add_shares(threads, x, stack, adapters, out):
    for share in prange(threads):
        low_rank_share(np.int64(share), threads, x, stack, adapters, out)


@njit(**STEADY)
def add_low_rank(threads, x, stack, adapters, out):
    """See kernels/low_rank.py; a stack is (down, up, bounds). If `adapters` is empty, no row has one."""
    if adapters.size == 0:
        return
    if threads > 1 and x.shape[0] > 1:
        _add_shares(min(threads, x.shape[0]), x, stack, adapters, out)
    else:
        low_rank_share(0, 1, x, stack, adapters, out)
