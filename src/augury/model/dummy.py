"""Weights that come from no file, for `load_format="dummy"`: random, made on the device, the same in every run."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from types import TracebackType

import torch
from torch import Tensor

BIAS_SPREAD = 0.02


def random_tensor(name: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """A weight by its name: norms are 1, and matrices keep the variance of what they multiply."""
    made = torch.empty(shape, dtype=dtype, device=device)
    if len(shape) < 2 and not name.endswith("bias"):
        return made.fill_(1.0)
    spread = BIAS_SPREAD if len(shape) < 2 else 1 / math.sqrt(shape[-1])
    return made.normal_(0.0, spread, generator=torch.Generator(device).manual_seed(zlib.crc32(name.encode())))


class DummyCheckpoint:
    """The interface of Checkpoint over tensors that are created on request."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self._dtype, self._device = dtype, device
        self._shapes: dict[str, tuple[int, ...]] = {}

    def __enter__(self) -> DummyCheckpoint:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Do nothing: there is nothing to close."""

    def require(self, expected: dict[str, tuple[int, ...]], spare: Callable[[str], bool] = lambda name: False) -> None:
        """Record the shapes of the required tensors."""
        self._shapes = expected

    def tensor(self, name: str) -> Tensor:
        """Make one tensor."""
        return random_tensor(name, self._shapes[name], self._dtype, self._device)
