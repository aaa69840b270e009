"""How the CPU kernels are compiled, by how much of their arithmetic the compiler may rearrange."""

from __future__ import annotations

FAST = {"reassoc", "contract", "arcp", "nsz", "afn", "nnan"}  # not ninf: a row's largest score starts at -inf
OPTIONS = {"cache": True, "nogil": True, "boundscheck": False, "error_model": "numpy", "fastmath": FAST}
# Called from two loops, which the compiler may not rearrange in two ways: the bits must be the same.
STEADY = {**OPTIONS, "fastmath": {"contract", "nsz", "nnan"}}
# Every operation as it is written: numba marks those of intrinsics too, whose sums have an order to keep.
ORDERED = {**OPTIONS, "fastmath": False}
