"""Copies of KV cache blocks in host memory: a line holds all that is cached for one block, the drafter's part included.

Copies are queued on the device's own stream, after the pass in flight and before the next one, so that no pass waits
for them. A line is stored with the sum of its words, computed on the device; one whose sum has changed is not used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

WORD = 8  # bytes: each part of a line begins at a multiple, so that it can be seen in its own type


class _Part(NamedTuple):
    """One tensor's share of a block."""

    blocks: Tensor  # [blocks, elements]: a view of the tensor
    begin: int  # in words of a line
    end: int

    def of(self, lines: Tensor) -> Tensor:
        """View this tensor's part of lines int64 [n, words], in its own type."""
        return lines[:, self.begin : self.end].view(self.blocks.dtype)[:, : self.blocks.shape[1]]


class HostLines:
    """Lines of host memory, each as large as all that the device keeps for a block."""

    def __init__(self, stores: Sequence[Tensor], num_blocks: int, room: int) -> None:
        """`stores` have a line, or as many lines as a block has tokens, for each block; `room` is in bytes."""
        self._parts: list[_Part] = []
        words = 0
        for store in stores:
            blocks = store.view(num_blocks, -1)
            size = blocks.shape[1] * store.element_size()
            begin, words = words, words + -(-size // WORD)
            self._parts.append(_Part(blocks, begin, words))
        self.line_bytes = words * WORD
        self.num_lines = room // self.line_bytes
        self._device = stores[0].device
        on_gpu = self._device.type == "cuda"
        self._lines = torch.empty(self.num_lines, words, dtype=torch.int64, pin_memory=on_gpu)
        self._sums = torch.empty(self.num_lines, dtype=torch.int64, pin_memory=on_gpu)
        self._written = torch.cuda.Event() if on_gpu else None

    def store(self, blocks: Sequence[int], lines: Sequence[int]) -> None:
        """Copy blocks to lines, no two of which are the same."""
        at = torch.tensor(blocks, device=self._device)
        packed = torch.zeros(len(blocks), self._lines.shape[1], dtype=torch.int64, device=self._device)
        for part in self._parts:
            part.of(packed).copy_(part.blocks[at])
        sums = packed.sum(1)
        for number, line in enumerate(lines):
            self._lines[line].copy_(packed[number], non_blocking=True)
            self._sums[line].copy_(sums[number], non_blocking=True)
        if self._written is not None:
            self._written.record()

    def whole(self, line: int) -> bool:
        """Whether a line is still what was stored."""
        if self._written is not None:
            self._written.synchronize()
        return int(self._lines[line].numpy().sum(dtype=np.int64)) == int(self._sums[line])

    def load(self, lines: Sequence[int], blocks: Sequence[int]) -> None:
        """Copy lines to blocks."""
        at = torch.tensor(blocks, device=self._device)
        packed = torch.empty(len(lines), self._lines.shape[1], dtype=torch.int64, device=self._device)
        for number, line in enumerate(lines):
            packed[number].copy_(self._lines[line], non_blocking=True)
        for part in self._parts:
            part.blocks[at] = part.of(packed)
