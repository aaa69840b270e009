"""Memory after large requests: free blocks go back to the system."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

# A block of 8 MB is freed; then 40 blocks of half a megabyte are taken, with small ones between them, and freed.
# Prints the bytes that stay in the heap although nobody uses them.
CHILD = """
import ctypes, sys
from augury.serve.memory import give_back

if sys.argv[1] == "fixed":
    give_back()
library = ctypes.CDLL(None)
library.malloc.argtypes, library.free.argtypes = [ctypes.c_size_t], [ctypes.c_void_p]
library.malloc.restype = ctypes.c_void_p
names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
fields = [(name, ctypes.c_size_t) for name in names.split()]
library.mallinfo2.restype = type("Info", (ctypes.Structure,), {"_fields_": fields})
library.free(library.malloc(8 << 20))
large, small = [], []
for _ in range(40):
    large.append(library.malloc(512 << 10))
    small.append(library.malloc(60_000))
for block in large:
    library.free(block)
print(library.mallinfo2().fordblks)
"""


def left(how: str) -> int:
    return int(subprocess.run([sys.executable, "-c", CHILD, how], capture_output=True, text=True, check=True).stdout)


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="glibc 2.33 or later")
def test_freed_blocks_do_not_stay_between_small_ones() -> None:
    assert left("as it is") > 16 << 20  # the system's own way, or the other figure would say nothing
    assert left("fixed") < 4 << 20
