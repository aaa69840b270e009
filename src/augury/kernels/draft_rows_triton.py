"""Rows of a drafter's own forward passes, laid out in one kernel as drafters/rows.py's torch code does."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from augury.kernels.attend_plan_triton import few_sizes
from augury.kernels.layout_triton import CHUNK, ROW_FIELDS

BLOCK = 128


class UnreadTensors(NamedTuple):
    """Rows for what a drafter has not read yet."""

    rows: Tensor  # int64 [7, R], fields as in layout_triton
    places: Tensor  # int64 [3, R]: group, number inside the group, whether the row is live
    wanted: Tensor  # int64 [G * (1 + masks)]


def fresh_rows(
    slots: Tensor,
    begin: Tensor,
    count: Tensor,
    history: Tensor,
    block_tables: Tensor,
    size: int,
    block_size: int,
    shift: int,
    masks: int,
    mask: int,
) -> UnreadTensors:
    """Known tokens begin .. begin + count - 1 of each group and `masks` masks after them, in `size` rows."""
    groups, kind = len(slots), {"dtype": torch.int64, "device": slots.device}
    out = UnreadTensors(
        torch.empty(ROW_FIELDS, size, **kind), torch.empty(3, size, **kind), torch.empty(groups * (1 + masks), **kind)
    )
    _fresh[(groups + 1,)](
        slots,
        begin,
        count,
        history,
        block_tables,
        *out,
        history.stride(0),
        block_tables.stride(0),
        block_tables.shape[1],
        history.shape[1],
        groups,
        size,
        len(history) - 1,
        mask,
        BLOCK_SIZE=block_size,
        SHIFT=shift,
        MASKS=masks,
        WANTED=triton.next_power_of_2(masks + 1),
        GROUPS=few_sizes(groups),
        CHUNK=CHUNK,
    )
    return out


@triton.jit(
    do_not_specialize=[
        "history_stride",
        "table_stride",
        "table_width",
        "history_width",
        "groups",
        "size",
        "padding_slot",
        "mask",
    ]
)
def _fresh(
    slots,
    begin,
    count,
    history,
    block_tables,
    rows,
    places,
    wanted,
    history_stride,
    table_stride,
    table_width,
    history_width,
    groups,
    size,
    padding_slot,
    mask,
    BLOCK_SIZE: tl.constexpr,
    SHIFT: tl.constexpr,
    MASKS: tl.constexpr,
    WANTED: tl.constexpr,
    GROUPS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    g = tl.program_id(0)
    other = tl.arange(0, GROUPS)
    counts = tl.load(count + other, mask=other < tl.minimum(g, groups), other=0)
    first = tl.sum(tl.where(counts > 0, counts + MASKS, 0), 0)
    if g == groups:
        for start in range(first, size, CHUNK):
            r = start + tl.arange(0, CHUNK)
            zero = tl.zeros([CHUNK], tl.int64)
            _put(
                rows,
                places,
                r,
                size,
                r < size,
                zero,
                zero,
                zero + padding_slot,
                zero,
                zero,
                zero,
                zero + groups - 1,
                zero,
                0,
            )
    else:
        slot, from_, known = tl.load(slots + g), tl.load(begin + g), tl.load(count + g)
        total = tl.where(known > 0, known + MASKS, 0)
        w = tl.arange(0, WANTED)
        tl.store(wanted + g * (1 + MASKS) + w, tl.where(known > 0, first + known - 1 + w, 0), mask=w <= MASKS)
        for start in range(0, total, CHUNK):
            i = (start + tl.arange(0, CHUNK)).to(tl.int64)
            live = (i < total) & (first + i < size)
            logical = from_ + i
            at = history + slot * history_stride + tl.minimum(logical, history_width - 1)
            token = tl.where(i < known, tl.load(at, mask=live, other=0), mask)
            write = _physical(block_tables + slot * table_stride, logical, table_width, live, BLOCK_SIZE)
            zero = tl.zeros([CHUNK], tl.int64)
            _put(
                rows,
                places,
                first + i,
                size,
                live,
                token,
                tl.maximum(logical - SHIFT, 0),
                zero + slot,
                logical + 1,
                logical,
                write,
                zero + g,
                i,
                1,
            )


@triton.jit
def _physical(table, logical, table_width, live, BLOCK_SIZE: tl.constexpr):
    block = tl.load(table + tl.minimum(logical // BLOCK_SIZE, table_width - 1), mask=live, other=0)
    return block * BLOCK_SIZE + logical % BLOCK_SIZE


@triton.jit
def _put(rows, places, r, size, live, token, position, slot, context, base, write, group, number, alive):
    tl.store(rows + r, token, mask=live)
    tl.store(rows + size + r, position, mask=live)
    tl.store(rows + 2 * size + r, slot, mask=live)
    tl.store(rows + 3 * size + r, context, mask=live)
    tl.store(rows + 4 * size + r, base, mask=live)
    tl.store(rows + 5 * size + r, tl.zeros_like(token), mask=live)
    tl.store(rows + 6 * size + r, write, mask=live)
    tl.store(places + r, group, mask=live)
    tl.store(places + size + r, number, mask=live)
    tl.store(places + 2 * size + r, tl.zeros_like(token) + alive, mask=live)


def level_rows(
    slots: Tensor,
    lengths: Tensor,
    budget: Tensor,
    tokens: Tensor,
    bits: Tensor | None,
    block_tables: Tensor,
    block_size: int,
    depth: int,
    number: int,
    least: int,
    shift: int,
) -> Tensor:
    """Drafted tokens [G, W] as rows, int64 [7, G * W]: nodes `number` and on, `depth` below the last known token.

    With ancestor bits they are nodes of a tree, without them the next token of a chain. A group with a budget below
    `least` has no live rows.
    """
    groups, width = tokens.shape
    out = torch.empty(ROW_FIELDS, groups * width, dtype=torch.int64, device=tokens.device)
    _level[(triton.cdiv(groups * width, BLOCK),)](
        slots,
        lengths,
        budget,
        tokens,
        tokens if bits is None else bits,
        block_tables,
        out,
        tokens.stride(0),
        block_tables.stride(0),
        block_tables.shape[1],
        groups * width,
        len(block_tables) - 1,
        depth,
        number,
        least,
        WIDTH=width,
        TREE=bits is not None,
        BLOCK_SIZE=block_size,
        SHIFT=shift,
        BLOCK=BLOCK,
    )
    return out


@triton.jit(
    do_not_specialize=[
        "token_stride",
        "table_stride",
        "table_width",
        "size",
        "padding_slot",
        "depth",
        "number",
        "least",
    ]
)
def _level(
    slots,
    lengths,
    budget,
    tokens,
    bits,
    block_tables,
    out,
    token_stride,
    table_stride,
    table_width,
    size,
    padding_slot,
    depth,
    number,
    least,
    WIDTH: tl.constexpr,
    TREE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    SHIFT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    r = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = r < size
    g, column = r // WIDTH, r % WIDTH
    live = inside & (tl.load(budget + g, mask=inside, other=0) >= least)
    length = tl.load(lengths + g, mask=live, other=0)
    slot = tl.load(slots + g, mask=live, other=0)
    logical = tl.where(live, length + number + column, 0)
    block = tl.minimum(logical // BLOCK_SIZE, table_width - 1)
    owned = tl.load(block_tables + slot * table_stride + block, mask=live, other=0)
    physical = owned * BLOCK_SIZE + logical % BLOCK_SIZE
    zero = tl.zeros([BLOCK], tl.int64)
    if TREE:
        position, context, base = length - 1 + depth - SHIFT, length, length
        ancestors = tl.load(bits + r, mask=live, other=0)
    else:
        position, context, base, ancestors = tl.maximum(logical - SHIFT, 0), logical + 1, logical, zero
    tl.store(out + r, tl.load(tokens + g * token_stride + column, mask=live, other=0), mask=inside)
    tl.store(out + size + r, tl.where(live, position, 0), mask=inside)
    tl.store(out + 2 * size + r, tl.where(live, slot, padding_slot), mask=inside)
    tl.store(out + 3 * size + r, tl.where(live, context, 0), mask=inside)
    tl.store(out + 4 * size + r, tl.where(live, base, 0), mask=inside)
    tl.store(out + 5 * size + r, tl.where(live, ancestors, 0), mask=inside)
    tl.store(out + 6 * size + r, tl.where(live, physical, 0), mask=inside)
