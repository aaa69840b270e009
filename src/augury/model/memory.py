"""Memory for caches, reserved at once and allocated page by page; and memory that only loading needed, given back."""

from __future__ import annotations

import ctypes
import math
import mmap
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor

LOADERS = ("/libllvmlite", "/torch/lib/")  # libraries most of whose code runs while an engine starts, and then no more


def lasting_zeros(*shape: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros that cost nothing on a CPU until they are written; torch.zeros writes them all, gigabytes of a cache."""
    size = math.prod(shape) * dtype.itemsize
    if device.type != "cpu" or not size:
        return torch.zeros(*shape, dtype=dtype, device=device)
    return torch.frombuffer(mmap.mmap(-1, size), dtype=dtype).view(shape)


def let_go() -> None:
    """Give back what only loading needed: the heap's free pages, and the pages of code that has run once.

    Such a page is an unmodified part of the library's file, and is read from there again if it is needed. On systems
    other than Linux nothing happens.
    """
    with suppress(OSError, AttributeError):
        system = ctypes.CDLL(None)
        pages = list(_code(Path("/proc/self/maps").read_text()))
        system.malloc_trim(0)
        for first, last in pages:
            system.madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), mmap.MADV_DONTNEED)


def _code(maps: str) -> Iterator[tuple[int, int]]:
    """Address ranges of the code of such libraries; the pages are read-only, so nothing is lost."""
    for line in maps.splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and fields[1] == "r-xp" and any(part in fields[5] for part in LOADERS):
            first, last = fields[0].split("-")
            yield int(first, 16), int(last, 16)
