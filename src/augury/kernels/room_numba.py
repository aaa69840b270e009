"""Room for what a kernel works on."""

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
