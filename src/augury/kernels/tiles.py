"""Packed weights as the integer kernels read them: LINES lines beside each other.

A tile is LINES lines of the matrix, block after block of 32 weights. Of a block come first the codes, four of every
line, then the next four; 4-bit codes i and i + 16 share a byte. Its scales and its shifts are a vector each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import pad

from augury.kernels.machine import LINES
from augury.kernels.unpack import BLOCK, unpacked

if TYPE_CHECKING:
    from augury.model.packed import Packed

GROUP = 4  # weights of one line that a dot product takes at a time


@dataclass(slots=True)
class Tiled:
    """A matrix [lines, width]; where lines are no multiple of LINES the last tile is filled up with zeros."""

    codes: Tensor  # uint8 [tiles, blocks, 16 * LINES] or int8 [tiles, blocks, 32 * LINES]
    scales: Tensor  # float32 [tiles, blocks, 2 or 3, LINES], in the order of Packed
    size: int
    digits: tuple[int, ...]  # to which activations are rounded before they meet it

    def __len__(self) -> int:
        return self.size

    @property
    def width(self) -> int:
        """The length of a line."""
        return self.codes.shape[1] * BLOCK

    def unpacked(self) -> Tensor:
        """The float32 matrix."""
        return self.lines(torch.arange(len(self)))

    def lines(self, wanted: Tensor) -> Tensor:
        """Some lines as float32, to the bit what Packed.lines gives."""
        tile, line, blocks = wanted // LINES, wanted % LINES, self.codes.shape[1]
        groups = self.codes.view(len(self.codes), blocks, -1, LINES, GROUP)[tile, :, :, line]
        return unpacked(groups.reshape(len(wanted), blocks, -1), self.scales[tile, :, :, line])


def tiled(weight: Packed, digits: tuple[int, ...]) -> Tiled:
    """Lay a matrix out in tiles."""
    spare = -len(weight) % LINES
    codes, scales = (pad(t, (0, 0) * (t.dim() - 1) + (0, spare)) for t in (weight.codes, weight.scales))
    tiles, blocks = len(codes) // LINES, scales.shape[1]
    groups = codes.view(tiles, LINES, blocks, -1, GROUP).permute(0, 2, 3, 1, 4)
    pairs = scales.view(tiles, LINES, blocks, -1).permute(0, 2, 3, 1)
    return Tiled(groups.reshape(tiles, blocks, -1), pairs.contiguous(), len(weight), digits)
