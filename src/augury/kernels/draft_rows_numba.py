"""Rows of a drafter's own forward passes, laid out in one loop on the host as drafters/rows.py's torch code does."""

from __future__ import annotations

import numpy as np
import torch
from numba import njit
from torch import Tensor

from augury.kernels.arrays import Array, array_of, lasting, with_array
from augury.kernels.layout_numba import ROW_FIELDS, physical, put_row


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
) -> tuple[Tensor, Tensor, Tensor]:
    """Rows int64 [7, R], their places [3, R], the wanted ones [G * (1 + masks)]; as draft_rows_triton.fresh_rows."""
    sizes = ((ROW_FIELDS, size), (3, size), (len(slots) * (1 + masks),))
    rows, places, wanted = (np.empty(shape, np.int64) for shape in sizes)
    lay_fresh(
        array_of(slots),
        array_of(begin),
        array_of(count),
        lasting(history),
        lasting(block_tables),
        block_size,
        shift,
        masks,
        mask,
        rows,
        places,
        wanted,
    )
    return torch.from_numpy(rows), with_array(places), torch.from_numpy(wanted)


@njit(cache=True, nogil=True)
def lay_fresh(
    slots: Array,
    begin: Array,
    count: Array,
    history: Array,
    block_tables: Array,
    block_size: int,
    shift: int,
    masks: int,
    mask: int,
    rows: Array,
    places: Array,
    wanted: Array,
) -> None:
    """Fill in the rows of one group after another, then the padding; see fresh_rows."""
    row, longest = 0, history.shape[1] - 1
    for g in range(len(slots)):
        slot, known = slots[g], count[g]
        for i in range(1 + masks):
            wanted[g * (1 + masks) + i] = row + known - 1 + i if known > 0 else 0
        for i in range(known + masks if known > 0 else 0):
            logical = begin[g] + i
            token = history[slot, min(logical, longest)] if i < known else mask
            write = physical(block_tables, slot, logical, block_size)
            put_row(rows, row, token, max(0, logical - shift), slot, logical + 1, logical, 0, write)
            places[0, row], places[1, row], places[2, row] = g, i, 1
            row += 1
    for i in range(row, rows.shape[1]):
        put_row(rows, i, 0, 0, len(block_tables) - 1, 0, 0, 0, 0)
        places[0, i], places[1, i], places[2, i] = len(slots) - 1, 0, 0


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
    """Drafted tokens [G, W] as rows, int64 [7, G * W]; see draft_rows_triton.level_rows."""
    groups, width = tokens.shape
    rows = np.empty((ROW_FIELDS, groups * width), np.int64)
    lay_level(
        array_of(slots),
        array_of(lengths),
        array_of(budget),
        array_of(tokens),
        array_of(tokens if bits is None else bits),
        lasting(block_tables),
        block_size,
        depth,
        number,
        least,
        shift,
        bits is not None,
        rows,
    )
    return torch.from_numpy(rows)


@njit(cache=True, nogil=True)
def lay_level(
    slots: Array,
    lengths: Array,
    budget: Array,
    tokens: Array,
    bits: Array,
    block_tables: Array,
    block_size: int,
    depth: int,
    number: int,
    least: int,
    shift: int,
    branching: bool,
    rows: Array,
) -> None:
    """Fill in one level's rows; a group with a budget below `least` has no live rows."""
    groups, width = tokens.shape
    for g in range(groups):
        slot, length = slots[g], lengths[g]
        for column in range(width):
            row, logical = g * width + column, length + number + column
            if budget[g] < least:
                put_row(rows, row, 0, 0, len(block_tables) - 1, 0, 0, 0, 0)
                continue
            write = physical(block_tables, slot, logical, block_size)
            if branching:
                position, ancestors = length - 1 + depth - shift, bits[g, column]
                put_row(rows, row, tokens[g, column], position, slot, length, length, ancestors, write)
            else:
                position = max(0, logical - shift)
                put_row(rows, row, tokens[g, column], position, slot, logical + 1, logical, 0, write)
