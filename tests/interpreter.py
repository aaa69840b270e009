"""Triton's interpreter, mended where it does not know today's numpy: import this before kernels are run on a CPU."""

from __future__ import annotations

from typing import Any

from triton.runtime import interpreter

_patch = interpreter._patch_lang_tensor


def _patched(tensor: Any, scope: Any) -> None:
    """numpy 2.4 no longer takes an array of one element for a number; Triton 3.9 squeezes it first, 3.6 does not."""
    _patch(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.squeeze()))


interpreter._patch_lang_tensor = _patched
