"""Describes the machine's features that matter for the CPU kernels, and which kernels they select.

The text is derived from the constants that the kernels themselves use; nothing is detected twice.
"""

from __future__ import annotations

import os

import torch

from augury.kernels import machine, numba_ops, threads  # numba_ops first: it says where compiled code is kept
from augury.kernels.attend_tile_numba import LEAST_ROWS, MOST_ROWS
from augury.kernels.faces import face
from augury.kernels.simd_softmax import KEY_BLOCK
from augury.observe.machine import cpu_name, how_threads_wait

WIDTHS = {16: "512 bits (AVX-512)", 8: "256 bits (AVX2)", 4: "128 bits (SSE2)"}  # by floats in a register
BF16 = {"amx-bf16": "AMX", "avx512bf16": "AVX-512", "bf16": "NEON"}  # by LLVM's name, the best first


def machine_in_words() -> dict[str, str]:
    """The processor and those of its instructions that decide between kernels."""
    bf16 = [words for name, words in BF16.items() if name in machine.extensions()]
    return {
        "processor": f"{cpu_name()} ({machine.processor()})",
        "vectors": "128 bits (NEON)" if machine.ARM else WIDTHS[machine.LINES],
        "byte_products": _byte_products(),
        "bfloat16_products": f"yes ({bf16[0]})" if bf16 else "none",
    }


def choices_in_words() -> dict[str, str]:
    """Which kernels run here, on how many threads, and where their code is kept."""
    running = {
        "threads": f"{threads.share_pool()} on {os.cpu_count()} processors; idle ones wait: {how_threads_wait()}",
        "compiled_code": str(threads.compiled_code_at()),
    }
    if (chosen := face(torch.device("cpu"))) != "numba":
        return {"kernels": f"{chosen}, set by AUGURY_KERNELS", **running}
    across = f"{LEAST_ROWS} to {MOST_ROWS} rows at a time, keys across lanes"
    vendor = f"the vendor's library above {numba_ops.VENDOR_ROWS} rows, else our own kernel"
    rows, columns = machine.REGISTER_TILE
    exact = f"integers, {_by()}, three bytes per activation"
    return {
        "packed_exact": exact if machine.DOT_PRODUCTS else "float32, unpacked in the cache",
        "packed_fast": f"integers, {_by()}, one byte per activation",
        "packed_tiles": f"{2 * machine.LINES} lines",
        "float32_weights": f"float32, {rows} x {columns} vectors of sums in registers",
        "bfloat16_weights": vendor if machine.BF16_PRODUCTS else "our own kernel for any number of rows",
        "prompts": f"the same products, {numba_ops.PANEL_ROWS} rows at a time",
        "attention": f"{KEY_BLOCK} keys at a time; prompts: {across if machine.KEYS_ACROSS else 'four rows at a time'}",
        **running,
    }


def _byte_products() -> str:
    """The instruction that adds up products of bytes."""
    if machine.ARM_DOTS:
        return "sdot (NEON)"
    if machine.X86_DOTS:
        return f"vpdpbusd ({'AVX-512 VNNI' if machine.LINES == 16 else 'AVX-VNNI'})"
    return "pairs (vpmaddubsw)" if machine.X86_PAIRS else "none"


def _by() -> str:
    """The instructions by which integers are multiplied; see simd_dots."""
    if machine.DOT_PRODUCTS:
        return "sdot" if machine.ARM_DOTS else "vpdpbusd"
    return "vpmaddubsw (4-bit codes) or vpmaddwd" if machine.X86_PAIRS else "16-bit products"
