"""Low-rank additions on a CPU: each row with its own adapter's factors, rows without one untouched."""

from __future__ import annotations

import numpy as np
from numba import njit

from augury.kernels.attention_numba import STEADY


@njit(**STEADY)
def add_low_rank(x, down, up, bounds, adapters, out):
    """See kernels/low_rank.py. Sums run in one order for every row, so its bits do not depend on its neighbours."""
    width, columns, rank = down.shape[1], down.shape[2], up.shape[1]
    inner = np.empty(columns, np.float32)
    for row in range(x.shape[0]):
        place = adapters[row] - 1
        if place < 0:
            continue
        inner[:] = 0.0
        for i in range(width):  # lines of the factor are contiguous, so that the compiler adds them in vectors
            value = x[row, i]
            for c in range(columns):
                inner[c] += value * down[place, i, c]
        begin = 0
        for part in range(len(bounds)):
            end = bounds[part]
            for j in range(rank):
                value = inner[part * rank + j]
                for o in range(begin, end):
                    out[row, o] += value * up[place, j, o]
            begin = end
