"""Few rows times a large matrix on a GPU: the time is the matrix's way from memory, and what stands between kernels.

cuBLAS reads such a matrix as fast, but the kernel after it cannot be launched ahead (ahead_triton.py). The sizes are
what was fastest on an H200 in whole passes of models with 8 and 1 billion weights (docs/LOG.md).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from augury.kernels.ahead_triton import can_launch_ahead
from augury.kernels.matrix_triton import MatrixTile, multiply

LARGE = 1 << 22  # numbers of a matrix that is worth it
OUTS = 64  # lines of the matrix that a program multiplies
DEEP, DEEP_SEGMENTS = 8192, 4
FEWEST_PROGRAMS, MANY_PROGRAMS = 96, 192
MOST_SEGMENTS, MOST_ROWS = 4, 64


class Way(NamedTuple):
    """How a product is computed."""

    tile: MatrixTile
    segments: int  # of the depth, each by a program of its own


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, segments: int = 0) -> Tensor | None:
    """The product, or None where cuBLAS is the better choice; the depth cut into `segments` where given."""
    if weight.dtype not in (torch.bfloat16, torch.float16) or x.dtype != weight.dtype or not can_launch_ahead(x.device):
        return None
    way = way_of(len(x), weight.shape[0], weight.shape[1], segments)
    return None if way is None else multiply(x, weight, bias, *way)


def way_of(rows: int, outs: int, depth: int, segments: int = 0) -> Way | None:
    """By the numbers of rows, lines and columns, and segments if given; none where cuBLAS is better."""
    few, tiles = rows <= MOST_ROWS // 2, -(-outs // OUTS)
    narrow = depth >= DEEP and tiles < FEWEST_PROGRAMS  # cuBLAS finds too little to do at once
    if rows > MOST_ROWS or outs * depth < LARGE or not (few or narrow):
        return None
    segments = segments or _segments(tiles, depth, few)
    if few and tiles * segments <= MANY_PROGRAMS:
        step, stages = 256, 3  # a program or two a processor: each must ask for much at once
    else:
        step, stages = 128, 4
    if depth % (step * segments):
        return None
    height = 16 if rows <= 16 else 32 if few else MOST_ROWS
    return Way(MatrixTile(height, OUTS, 4, stages, step), segments)


def _segments(tiles: int, depth: int, few: bool) -> int:
    """Into how many the depth is cut: until there are programs enough to ask for the matrix."""
    segments = DEEP_SEGMENTS if few and depth >= DEEP else 1
    while tiles * segments < FEWEST_PROGRAMS and segments < MOST_SEGMENTS:
        segments *= 2
    return segments
