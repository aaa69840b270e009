"""Room for what a kernel works on, and filling it."""

from __future__ import annotations

import numpy as np
from numba import njit

from augury.kernels.numba_options import OPTIONS


@njit(**OPTIONS)
def aligned(size):
    """Room for floats that begins with a cache line: a vector across two lines takes twice as long to load."""
    room = np.empty(size + 16, np.float32)
    skipped = (-(room.ctypes.data // 4)) % 16
    return room[skipped : skipped + size]


@njit(**OPTIONS)
def put(line, values):
    """line[:] = values, which numba compiles with an error message about shapes: seconds, and no use to a kernel."""
    for i in range(len(line)):
        line[i] = values[i]
