"""Tensors as the numpy arrays that numba reads."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

Array = np.ndarray[Any, Any]

ALIGNED_ROWS = 4  # rows from which aligned activations are worth their slower allocation
NOTHING = np.empty(0, np.float32)


def fresh(rows: int, width: int) -> tuple[Tensor, Array]:
    """A new float32 tensor and its array.

    numpy allocates in a third of torch's time, torch on whole cache lines, which pays where many rows are read again.
    Only an array that does not hold the tensor may be kept on it: see lasting.
    """
    if rows >= ALIGNED_ROWS:
        tensor = torch.empty(rows, width, dtype=torch.float32)
        return tensor, tensor.numpy()
    array = np.empty((rows, width), np.float32)
    return with_array(array), array


def with_array(array: Array) -> Tensor:
    """A tensor on the memory of an array, which it carries as an attribute for array_of."""
    tensor = torch.from_numpy(array)
    tensor._augury_view = array  # type: ignore[attr-defined]
    return tensor


def array_of(tensor: Tensor) -> Array:
    """The numpy view of an activation; tensors made here carry it."""
    view: Array | None = getattr(tensor, "_augury_view", None)
    return tensor.contiguous().numpy() if view is None else view


def optional(tensor: Tensor | None) -> Array:
    return NOTHING if tensor is None else lasting(tensor)


def lasting(tensor: Tensor) -> Array:
    """The numpy view of a weight or cache, kept on the tensor: making one takes as long as a small kernel.

    bf16 comes as the 16-bit integers that numba can read. The view must not hold the tensor itself: numpy takes no part
    in cycle collection, and a cache would never be freed.
    """
    view: Array | None = getattr(tensor, "_augury_view", None)
    if view is None:
        if not tensor.is_contiguous():
            raise ValueError("weights and caches must be contiguous")  # a copy would never see what is written later
        plain = tensor.detach()
        view = (plain.view(torch.uint16) if plain.dtype == torch.bfloat16 else plain).numpy()
        tensor._augury_view = view  # type: ignore[attr-defined]
    return view
