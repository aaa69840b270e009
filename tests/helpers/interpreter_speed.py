"""Triton's interpreter made faster: it describes the shape and type of every tensor anew, which is most of its time."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import triton.language as tl
from triton._utils import validate_block_shape
from triton.runtime import interpreter

_np_dtype, _equal = interpreter._get_np_dtype, tl.tuple.__eq__
_names: dict[str, np.dtype] = {}


def _known_dtype(kind: Any) -> np.dtype:
    """interpreter._get_np_dtype, remembered by the type's name."""
    kind = kind.element_ty if isinstance(kind, tl.block_type) else kind
    if kind.name not in _names:
        _names[kind.name] = _np_dtype(kind)
    return _names[kind.name]


@cache
def _sizes(shape: tuple[int, ...]) -> tuple[Any, int, str]:
    """A block's shape as its type keeps it, its number of elements, and its name."""
    if not shape:
        raise TypeError("0d block_type is forbidden")
    return tl.tuple(shape), validate_block_shape(shape), str(shape)


@cache
def _constants(shape: tuple[int, ...]) -> tuple[Any, Any]:
    """A shape as a tensor keeps it, and its number of elements."""
    return tl.tuple([tl.constexpr(size) for size in shape]), tl.constexpr(int(np.prod(shape)))


def _block_type(self: Any, element_ty: Any, shape: Any) -> None:
    plain = tuple(size.value if isinstance(size, tl.constexpr) else size for size in shape)
    self.element_ty, (self.shape, self.numel, name) = element_ty, _sizes(plain)
    self.name = f"<{name}, {element_ty}>"


def _tensor(self: Any, handle: Any, type: Any) -> None:
    self.handle, self.type, self.dtype = handle, type, type.scalar
    self.shape, self.numel = _constants(tuple(type.shape.values) if type.is_block() else ())


def _same(self: Any, other: Any) -> Any:
    return tl.constexpr(True) if self is other else _equal(self, other)


def install() -> None:
    """Put these in place of Triton's own."""
    interpreter._get_np_dtype = _known_dtype
    tl.block_type.__init__, tl.tensor.__init__, tl.tuple.__eq__ = _block_type, _tensor, _same
