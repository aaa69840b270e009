"""Makes malloc return a large request's memory to the system when it is freed."""

from __future__ import annotations

import ctypes
from contextlib import suppress

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8  # of glibc's malloc.h
BLOCK = 256 << 10  # bytes; larger blocks get pages of their own
ARENAS = 2  # heaps; by default each thread that writes a large answer would get one


def give_back() -> None:
    """Fix the thresholds of glibc's malloc, which it would raise with each large block that is freed, until megabytes
    of free memory stay between small objects. Other systems have nothing to set."""
    with suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        for name, value in ((M_MMAP_THRESHOLD, BLOCK), (M_TRIM_THRESHOLD, BLOCK), (M_ARENA_MAX, ARENAS)):
            library.mallopt(name, value)
