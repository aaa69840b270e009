"""cuBLAS's own library of algorithms (cublasLt), by ctypes: which there are for a product, and how to run one.

torch calls cuBLAS, which picks an algorithm by rule. Here a caller names it.
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_float, c_int, c_int64, c_size_t, c_uint64, c_void_p
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

# The library's enumerations, by the names it gives them.
CUBLAS_COMPUTE_32F = 68
CUDA_R_32F, TYPES = 0, {torch.float16: 2, torch.bfloat16: 14}
DESC_TRANSA, CUBLAS_OP_T = 3, 1
PREF_MAX_WORKSPACE_BYTES = 1
WORKSPACE = 32 << 20  # bytes; what torch gives cuBLAS on such GPUs
MOST = 16  # algorithms asked for: the fastest is among the first few
ALIGNED = 256  # bytes; what the library assumes of addresses unless it is told otherwise


class Product(NamedTuple):
    """The sizes and the type of x [rows, depth] times weight [outs, depth]."""

    rows: int
    outs: int
    depth: int
    dtype: torch.dtype

    @classmethod
    def of(cls, x: Tensor, weight: Tensor) -> Product:
        """That of these two."""
        return cls(len(x), weight.shape[0], weight.shape[1], weight.dtype)


class _Algorithm(ctypes.Structure):
    _fields_ = (("data", c_uint64 * 8),)


ALGORITHM_BYTES = ctypes.sizeof(_Algorithm)


class _Found(ctypes.Structure):
    _fields_ = (
        ("algorithm", _Algorithm), ("workspace", c_size_t), ("state", c_int), ("waves", c_float),
        ("reserved", c_int * 4),
    )  # fmt: skip


class CublasLt:
    """The library on one GPU."""

    def __init__(self, library: Any, device: torch.device) -> None:
        self._library = library
        self.version = int(library.cublasLtGetVersion())
        self._workspace = torch.empty(WORKSPACE, dtype=torch.uint8, device=device)  # graphs point to it
        with torch.cuda.device(device):
            self._handle = self._made("cublasLtCreate")
        self._transposed = self._made("cublasLtMatmulDescCreate", c_int(CUBLAS_COMPUTE_32F), c_int(CUDA_R_32F))
        self._set("cublasLtMatmulDescSetAttribute", self._transposed, DESC_TRANSA, c_int(CUBLAS_OP_T))
        self._limits = self._made("cublasLtMatmulPreferenceCreate")
        self._set("cublasLtMatmulPreferenceSetAttribute", self._limits, PREF_MAX_WORKSPACE_BYTES, c_size_t(WORKSPACE))
        self._layouts: dict[Product, tuple[c_void_p, c_void_p, c_void_p]] = {}

    def algorithms(self, product: Product) -> list[bytes]:
        """The algorithms for a product that the library recommends, the most recommended first."""
        found, count = (_Found * MOST)(), c_int()
        a, b, c = self._layout(product)
        self._call(
            "cublasLtMatmulAlgoGetHeuristic",
            self._handle, self._transposed, a, b, c, c, self._limits, c_int(MOST), found, byref(count),
        )  # fmt: skip
        return [bytes(every.algorithm) for every in found[: count.value] if not every.state]

    def multiply(self, x: Tensor, weight: Tensor, algorithm: bytes) -> Tensor:
        """x times weight, both contiguous and of one type, by this algorithm."""
        product = Product.of(x, weight)
        out = torch.empty(product.rows, product.outs, dtype=x.dtype, device=x.device)
        a, b, c = self._layout(product)  # the library counts by columns: what it is asked for is weight times x
        to, stream = c_void_p(out.data_ptr()), c_void_p(torch.cuda.current_stream(x.device).cuda_stream)
        self._call(
            "cublasLtMatmul",
            self._handle, self._transposed, byref(c_float(1)), c_void_p(weight.data_ptr()), a, c_void_p(x.data_ptr()),
            b, byref(c_float(0)), to, c, to, c, algorithm, c_void_p(self._workspace.data_ptr()), c_size_t(WORKSPACE),
            stream,
        )  # fmt: skip
        return out

    def _layout(self, product: Product) -> tuple[c_void_p, c_void_p, c_void_p]:
        if product not in self._layouts:
            rows, outs, depth, dtype = product
            sizes = ((depth, outs), (depth, rows), (outs, rows))
            made = (
                self._made("cublasLtMatrixLayoutCreate", c_int(TYPES[dtype]), c_uint64(m), c_uint64(n), c_int64(m))
                for m, n in sizes
            )
            self._layouts[product] = (next(made), next(made), next(made))
        return self._layouts[product]

    def _made(self, function: str, *arguments: Any) -> c_void_p:
        """What a function of the library creates; it lives as long as the process."""
        made = c_void_p()
        self._call(function, byref(made), *arguments)
        return made

    def _set(self, function: str, of: c_void_p, attribute: int, value: Any) -> None:
        self._call(function, of, c_int(attribute), byref(value), c_size_t(ctypes.sizeof(value)))

    def _call(self, function: str, *arguments: Any) -> None:
        if status := getattr(self._library, function)(*arguments):
            raise RuntimeError(f"{function} returned {status}")


@cache
def cublas_lt(device: torch.device) -> CublasLt | None:
    """The library that torch has loaded, for this GPU; None where there is none, as with ROCm."""
    if torch.version.cuda is None:
        return None
    try:
        library = ctypes.CDLL(f"libcublasLt.so.{torch.version.cuda.split('.')[0]}")
        return CublasLt(library, device)
    except (OSError, AttributeError, RuntimeError):
        return None
