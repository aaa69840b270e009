"""Move the winning path of a draft tree into place in every layer's cache at once."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024


def move_path(
    keys: Tensor, values: Tensor, path: Tensor, ends: Tensor, slots: Tensor, block_tables: Tensor, block_size: int
) -> None:
    """Copy node path[g, i] of group g's draft to the i-th row after its known ones, in pools [layers, rows, width]."""
    groups, nodes = path.shape
    for pool in (keys, values):
        layers, width = pool.shape[0], pool.shape[2]
        _move[(groups, layers, triton.cdiv(width, BLOCK))](
            pool,
            path,
            ends,
            slots,
            block_tables,
            pool.stride(0),
            width,
            nodes,
            path.stride(0),
            block_tables.stride(0),
            BLOCK_SIZE=block_size,
            BLOCK=BLOCK,
        )


@triton.jit(do_not_specialize=["nodes", "path_stride", "table_stride"])
def _move(
    pool,
    path,
    ends,
    slots,
    block_tables,
    layer_stride,
    width,
    nodes,
    path_stride,
    table_stride,
    BLOCK_SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    g, layer = tl.program_id(0), tl.program_id(1).to(tl.int64)
    column = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    end, table = tl.load(ends + g), block_tables + tl.load(slots + g) * table_stride
    lane = pool + layer * layer_stride + column
    # In order: a node's number is never below its place on the path, so no row is overwritten before it is read.
    node = tl.load(path + g * path_stride)
    i = 0
    while (i < nodes) & (node >= 0):
        if node != i:
            source, goal = end + node, end + i
            start = tl.load(table + source // BLOCK_SIZE) * BLOCK_SIZE + source % BLOCK_SIZE
            to = tl.load(table + goal // BLOCK_SIZE) * BLOCK_SIZE + goal % BLOCK_SIZE
            tl.store(lane + to * width, tl.load(lane + start * width, mask=column < width), mask=column < width)
        i += 1
        node = tl.load(path + g * path_stride + i, mask=i < nodes, other=-1)
