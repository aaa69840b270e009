"""Allocate and fill the buffers of kernels."""

from __future__ import annotations

import numpy as np
from numba import njit

from augury.kernels.numba_options import OPTIONS


@njit(**OPTIONS)
def aligned(size):
    """A buffer of floats that begins at a cache line: a vector across two lines takes twice as long to load."""
    room = np.empty(size + 16, np.float32)
    skipped = (-(room.ctypes.data // 4)) % 16
    return room[skipped : skipped + size]


@njit(**OPTIONS)
def put(line, values):
    """line[:] = values, which numba compiles with an error message about shapes: that takes seconds for no use."""
    for i in range(len(line)):
        line[i] = values[i]
