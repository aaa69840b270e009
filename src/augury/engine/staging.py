"""Pinned memory that carries small arrays to the device and back without either side waiting for the other.

A copy from pageable memory waits for everything that is queued on the device, and allocating pinned memory for each
copy calls the driver, which may wait too. So one buffer is allocated at the start and its halves are used in turns.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

WORDS = 1 << 17  # int64 of each half: a long prompt and more


class Staging:
    """Two halves, used in turns: one is overwritten only when the copies from it, long past, are done."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._on_gpu = device.type == "cuda"
        self._memory = torch.empty(2, WORDS if self._on_gpu else 0, dtype=torch.int64, pin_memory=self._on_gpu)
        self._half, self._used = 0, 0
        self._left: list[torch.cuda.Event | None] = [None, None]  # when each half was last in use

    def send(self, values: np.ndarray) -> Tensor:
        """Copy values to the device, queued after the work that is there."""
        tensor = torch.from_numpy(values)
        if not self._on_gpu:
            return tensor
        words = -(-tensor.nbytes // 8)
        if words > WORDS:
            return tensor.pin_memory().to(self._device, non_blocking=True)
        place = self.reserve(words).view(torch.uint8)[: tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        place.copy_(tensor)
        return place.to(self._device, non_blocking=True)

    def reserve(self, words: int) -> Tensor:
        """Pinned int64 [words] not used again until many copies later; at most WORDS."""
        if not self._on_gpu:
            return torch.empty(words, dtype=torch.int64)
        if self._used + words > WORDS:
            self._turn()
        begin, self._used = self._used, self._used + words
        return self._memory[self._half, begin : begin + words]

    def _turn(self) -> None:
        """Switch to the other half of the buffer."""
        left = torch.cuda.Event()
        left.record()
        self._left[self._half] = left
        self._half, self._used = 1 - self._half, 0
        before = self._left[self._half]
        if before is not None:
            before.synchronize()
