"""Memory for caches: reserved at once, taken page by page as it is used."""

from __future__ import annotations

import math
import mmap

import torch
from torch import Tensor


def lasting_zeros(*shape: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros that cost nothing on a CPU until they are written; torch.zeros writes them all, gigabytes of a cache."""
    size = math.prod(shape) * dtype.itemsize
    if device.type != "cpu" or not size:
        return torch.zeros(*shape, dtype=dtype, device=device)
    return torch.frombuffer(mmap.mmap(-1, size), dtype=dtype).view(shape)
