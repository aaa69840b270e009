"""Few rows times a large matrix on a GPU: the time goes into reading the matrix and into gaps between kernels.

cuBLAS reads such a matrix as fast, but the kernel after it cannot be launched ahead (ahead_triton.py). The sizes are
what was fastest on an H200 in whole passes of models with 8 and 1 billion weights (docs/LOG.md).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from augury.kernels.ahead_triton import can_launch_ahead
from augury.kernels.matrix_triton import MatrixTile, multiply

LARGE = 1 << 22  # elements of a matrix, at least, for this to pay
OUTS = 64  # lines of the matrix that a program multiplies
DEEP, DEEP_SEGMENTS = 8192, 4
FEWEST_PROGRAMS, MANY_PROGRAMS = 96, 192
MOST_SEGMENTS, MOST_ROWS = 4, 64


class Way(NamedTuple):
    """The tile and the segments that a product is computed in."""

    tile: MatrixTile
    segments: int  # of the depth, each by a program of its own


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, segments: int = 0) -> Tensor | None:
    """The product, or None where cuBLAS is the better choice; the depth cut into `segments` where given."""
    if weight.dtype not in (torch.bfloat16, torch.float16) or x.dtype != weight.dtype or not can_launch_ahead(x.device):
        return None
    way = way_of(len(x), weight.shape[0], weight.shape[1], segments)
    return None if way is None else multiply(x, weight, bias, *way)


def way_of(rows: int, outs: int, depth: int, segments: int = 0) -> Way | None:
    """How to compute a product of these sizes, in `segments` if given; None where cuBLAS is better."""
    few, tiles = rows <= MOST_ROWS // 2, -(-outs // OUTS)
    narrow = depth >= DEEP and tiles < FEWEST_PROGRAMS  # cuBLAS has too little to do in parallel
    if rows > MOST_ROWS or outs * depth < LARGE or not (few or narrow):
        return None
    segments = segments or _segments(tiles, depth, few)
    if few and tiles * segments <= MANY_PROGRAMS:
        step, stages = 256, 3  # a program or two a processor: each must load much at once
    else:
        step, stages = 128, 4
    if depth % (step * segments):
        return None
    height = 16 if rows <= 16 else 32 if few else MOST_ROWS
    return Way(MatrixTile(height, OUTS, 4, stages, step), segments)


def _segments(tiles: int, depth: int, few: bool) -> int:
    """How many segments the depth is cut into: until there are programs enough to read the matrix at full speed."""
    segments = DEEP_SEGMENTS if few and depth >= DEEP else 1
    while tiles * segments < FEWEST_PROGRAMS and segments < MOST_SEGMENTS:
        segments *= 2
    return segments
