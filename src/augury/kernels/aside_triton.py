"""Store the target's features of the token that each group has run in its slot's rows; see engine/aside.py."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024


def put_aside(stream: Tensor, kept: Tensor, count: Tensor, table: Tensor, row_begin: Tensor, lines: int) -> None:
    """Copy each group's row of a stream [R, H] to the next row of its slot in `kept` [slots * lines, H]."""
    hidden = stream.shape[1]
    _put_aside[(len(row_begin), triton.cdiv(hidden, BLOCK))](
        stream, kept, count, table, row_begin, len(row_begin), hidden, stream.stride(0), LINES=lines, BLOCK=BLOCK
    )


def count_aside(count: Tensor, table: Tensor) -> None:
    """Add 1 to the count of every slot whose group has run a token; `table` int64 [8, G] is the pass's segments."""
    _count_aside[(table.shape[1],)](count, table, table.shape[1])


@triton.jit(do_not_specialize=["groups", "row_stride"])
def _put_aside(
    stream, kept, count, table, row_begin, groups, hidden, row_stride, LINES: tl.constexpr, BLOCK: tl.constexpr
):
    g, column = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    if tl.load(table + 2 * groups + g) > 0:
        slot = tl.load(table + g)
        line = slot * LINES + tl.minimum(tl.load(count + slot), LINES - 1)
        row = tl.load(row_begin + g)
        found = tl.load(stream + row * row_stride + column, mask=column < hidden)
        tl.store(kept + line * hidden + column, found, mask=column < hidden)


@triton.jit(do_not_specialize=["groups"])
def _count_aside(count, table, groups):
    g = tl.program_id(0)
    if tl.load(table + 2 * groups + g) > 0:
        slot = tl.load(table + g)
        tl.store(count + slot, tl.load(count + slot) + 1)
