"""Packed weights as the integer kernels read them: one stream of bytes, in which lines are interleaved.

A tile is 2 * LINES lines of the matrix, record after record, one for every 32 weights of a line. A record has the codes
of the first LINES lines and of the others, four of every line, then the next four (4-bit codes i and i + 16 share a
byte); then, for either half, the scales of these lines, and their shifts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from augury.kernels.arrays import Array, array_of, with_array
from augury.kernels.machine import LINES
from augury.kernels.unpack import BLOCK
from augury.kernels.weight_room import ROOM

if TYPE_CHECKING:
    from augury.kernels.unpack import Packed

TILE = 2 * LINES
GROUP = 4  # weights of one line that a dot product takes at a time


def code_bytes(halved: bool) -> int:
    """Bytes of the codes of half a record."""
    return LINES * BLOCK // (2 if halved else 1)


def factors_of(halved: bool) -> int:
    """Floats stored with a block's codes; see Packed."""
    return 2 if halved else 3


def record_bytes(halved: bool) -> int:
    """Bytes of a record."""
    return 2 * (code_bytes(halved) + 4 * LINES * factors_of(halved))


@dataclass(slots=True)
class Tiled:
    """A matrix [size, width]; where `size` is no multiple of TILE the last tile is filled up with zeros."""

    tiles: Array  # [tiles, blocks, bytes of a record]: uint8 where codes have 4 bits, int8 where they have 8
    size: int
    digits: tuple[int, ...]  # of the fixed-point activations that it is multiplied with

    def __len__(self) -> int:
        return self.size

    @property
    def width(self) -> int:
        """The length of a line."""
        return int(self.tiles.shape[1]) * BLOCK

    def unpacked(self) -> Tensor:
        """The float32 matrix."""
        return self.lines(torch.arange(len(self)))

    def lines(self, wanted: Tensor) -> Tensor:
        """The wanted lines as float32, to the bit what Packed.lines gives."""
        from augury.kernels.tiles_numba import gather_lines  # compiled code is loaded where it is used

        out = np.empty((len(wanted), self.width), np.float32)
        gather_lines(self.tiles, self.tiles.view(np.float32), array_of(wanted), self.parts, out)
        return with_array(out)

    @property
    def parts(self) -> int:
        """Floats stored with the codes of a line's block."""
        return factors_of(self.tiles.dtype == np.uint8)


def tiled(weight: Packed, digits: tuple[int, ...]) -> Tiled:
    """Lay a matrix out in tiles."""
    size, blocks = len(weight), weight.scales.shape[1]
    tiles, halved = -(-size // TILE), weight.codes.dtype == torch.uint8
    out = ROOM.zeros((tiles, blocks, record_bytes(halved)), np.uint8 if halved else np.int8)
    codes, factors = _whole(weight.codes.numpy(), tiles * TILE), _whole(weight.scales.numpy(), tiles * TILE)
    # A group and a factor have four bytes each: moved as one number they take a quarter of the time.
    groups = codes.view(np.uint32).reshape(tiles, 2, LINES, blocks, -1).transpose(0, 3, 1, 4, 2)
    vectors = factors.view(np.uint32).reshape(tiles, 2, LINES, blocks, -1).transpose(0, 3, 1, 4, 2)
    records, split = out.view(np.uint32), 2 * code_bytes(halved) // GROUP
    records[..., :split].reshape(groups.shape)[...] = groups
    records[..., split:].reshape(vectors.shape)[...] = vectors
    return Tiled(out, size, digits)


def _whole(part: Array, lines: int) -> Array:
    """A part of a matrix, filled up with lines of zeros."""
    spare = lines - len(part)
    return np.pad(part, ((0, spare), *[(0, 0)] * (part.ndim - 1))) if spare else part
