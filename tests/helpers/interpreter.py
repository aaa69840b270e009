"""Triton's interpreter, mended where it does not know today's numpy, and given libdevice's functions.

Import this before kernels are run on a CPU.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import interpreter_speed
import numpy as np
import triton.language as tl
from triton.language.extra.cuda import libdevice
from triton.runtime import interpreter

_patch = interpreter._patch_lang_tensor


def _patched(tensor: Any, scope: Any) -> None:
    """numpy 2.4 no longer takes an array of one element for a number; Triton 3.9 squeezes it first, 3.6 does not."""
    _patch(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.squeeze()))


interpreter._patch_lang_tensor = _patched


def _elementwise(function: Callable[[np.ndarray], np.ndarray]) -> Callable[[Any], Any]:
    def call(x: Any) -> Any:
        with np.errstate(all="ignore"):
            return tl.tensor(interpreter.TensorHandle(np.asarray(function(x.handle.data)), x.handle.dtype), x.type)

    return call


def _fma(_builder: Any, x: Any, y: Any, z: Any) -> Any:
    """x * y + z rounded once, as a GPU does: the exact sum rounded to odd in float64 first, then to float32."""
    product, added = x.data.astype(np.float64) * y.data, np.asarray(z.data, np.float64)
    with np.errstate(all="ignore"):
        total = np.asarray(product + added)
        taken = total - product
        missing = (product - (total - taken)) + (added - taken)
        even = np.isfinite(total) & (missing != 0) & (total.view(np.int64) % 2 == 0)
        odd = np.where(even, np.nextafter(total, np.where(missing > 0, np.inf, -np.inf)), total)
        return interpreter.TensorHandle(odd.astype(np.float32), z.dtype.scalar)


if os.environ.get("TRITON_INTERPRET") == "1":
    # Once for all: the interpreter would patch the language for every call in a kernel, which is most of its time.
    interpreter._patch_lang(SimpleNamespace(__globals__={"tl": tl, "core": tl.core}))
    interpreter._patch_lang = lambda fn: interpreter._LangPatchScope()
    interpreter_speed.install()
    libdevice.exp, libdevice.log, libdevice.log1p = map(_elementwise, (np.exp, np.log, np.log1p))
    libdevice.fast_logf = libdevice.log
    libdevice.saturatef = _elementwise(lambda x: np.nan_to_num(x).clip(0, 1))
    libdevice.mul_rn = lambda x, y: x * y
    builder = interpreter.InterpreterBuilder
    builder.create_fma = _fma
    # Of a number and NaN the number, as the instructions give it.
    builder.create_maxnumf = lambda self, lhs, rhs: self.binary_op(lhs, rhs, np.fmax)
    builder.create_minnumf = lambda self, lhs, rhs: self.binary_op(lhs, rhs, np.fmin)
