"""The machine that the CPU kernels are compiled for: its vectors, and the instructions that decide between loops."""

from __future__ import annotations

import os
import re
import sys
from functools import cache
from pathlib import Path

import llvmlite.binding as llvm

APPLE = {"asimddp"} if sys.platform == "darwin" else set()  # every ARM core that Apple sold in a computer has them
ARM = llvm.get_process_triple().startswith(("aarch64", "arm64"))


@cache
def extensions() -> frozenset[str]:
    """The instruction-set extensions in use, by LLVM's names; on ARM, Linux reports some that LLVM does not detect."""
    told = os.environ.get("NUMBA_CPU_FEATURES")
    found = {name for name, there in llvm.get_host_cpu_features().items() if there}
    if told is not None:
        found = {name[1:] for name in told.split(",") if name.startswith("+")}
    elif ARM:
        flags = _linux_flags() | APPLE
        found |= {name for name, flag in (("dotprod", "asimddp"), ("bf16", "bf16")) if flag in flags}
    return frozenset(found)


def _linux_flags() -> set[str]:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return set()
    flags = re.search(r"^Features\s*:(.*)$", text, re.MULTILINE)
    return set(flags[1].split()) if flags else set()


def processor() -> str:
    """LLVM's name for the kind of processor."""
    return llvm.get_host_cpu_name()


# Floats in a vector register: half a tile of packed weights has as many lines.
LINES = 16 if "avx512bw" in extensions() else 8 if "avx2" in extensions() else 4
# Instructions that add up four products of bytes, for a register full of sums: ARM's take signed bytes, x86's unsigned
# by signed ones.
ARM_DOTS = ARM and "dotprod" in extensions()
X86_DOTS = not ARM and ("avx512vnni" if LINES == 16 else "avxvnni") in extensions()
# Products of bytes added up in pairs, with 16 bits for a sum, which is enough for codes of 4 bits.
X86_PAIRS = not ARM and not X86_DOTS and bool(extensions() & {"avx2", "avx512bw"})
DOT_PRODUCTS = ARM_DOTS or X86_DOTS
BF16_PRODUCTS = bool(extensions() & {"amx-bf16", "avx512bf16", "bf16"})  # without them torch takes minutes a prompt
# Sums of sixteen floats that fit in the registers with their operands: rows and columns of a product.
REGISTER_TILE = (4, 4) if "avx512f" in extensions() else (2, 2)
# Whether there are registers enough to score keys that lie across lanes, sixteen to a vector; else lanes are summed.
KEYS_ACROSS = "avx512f" in extensions()
