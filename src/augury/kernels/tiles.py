"""Packed weights as the integer kernels read them: LINES lines beside each other.

A tile is LINES lines of the matrix, block after block of 32 weights. Of a block come first the codes, four of every
line, then the next four; 4-bit codes i and i + 16 share a byte. Its scales and its shifts are a vector each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from augury.kernels.machine import LINES
from augury.kernels.unpack import BLOCK, unpacked

if TYPE_CHECKING:
    from augury.model.packed import Packed

Array = np.ndarray[Any, Any]

GROUP = 4  # weights of one line that a dot product takes at a time


@dataclass(slots=True)
class Tiled:
    """A matrix [size, width]; where `size` is no multiple of LINES the last tile is filled up with zeros."""

    codes: Array  # uint8 [tiles, blocks, 16 * LINES] or int8 [tiles, blocks, 32 * LINES]
    scales: Array  # float32 [tiles, blocks, 2 or 3, LINES], in the order of Packed
    size: int
    digits: tuple[int, ...]  # to which activations are rounded before they meet it

    def __len__(self) -> int:
        return self.size

    @property
    def width(self) -> int:
        """The length of a line."""
        return int(self.codes.shape[1]) * BLOCK

    def unpacked(self) -> Tensor:
        """The float32 matrix."""
        return self.lines(torch.arange(len(self)))

    def lines(self, wanted: Tensor) -> Tensor:
        """Some lines as float32, to the bit what Packed.lines gives."""
        tile, line, blocks = wanted // LINES, wanted % LINES, self.codes.shape[1]
        groups = torch.from_numpy(self.codes).view(len(self.codes), blocks, -1, LINES, GROUP)[tile, :, :, line]
        scales = torch.from_numpy(self.scales)[tile, :, :, line]
        return unpacked(groups.reshape(len(wanted), blocks, -1), scales)


def tiled(weight: Packed, digits: tuple[int, ...]) -> Tiled:
    """Lay a matrix out in tiles."""
    size, spare, blocks = len(weight), -len(weight) % LINES, weight.scales.shape[1]
    tiles = (size + spare) // LINES
    codes, scales = (
        np.pad(part.numpy(), ((0, spare), *[(0, 0)] * (part.dim() - 1))) if spare else part.numpy()
        for part in (weight.codes, weight.scales)
    )
    groups = codes.reshape(tiles, LINES, blocks, -1, GROUP).transpose(0, 2, 3, 1, 4).reshape(tiles, blocks, -1)
    factors = scales.reshape(tiles, LINES, blocks, -1).transpose(0, 2, 3, 1)
    return Tiled(groups, np.ascontiguousarray(factors), size, digits)
