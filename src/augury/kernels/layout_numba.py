"""Lay segments out as rows and lines in one loop on the host, as engine/rows.py's torch code does.

A row is a token that the forward pass runs, a line a row of logits from which a token is drawn.

That code takes some sixty small tensor operations, several microseconds each: as long as two layers of a small model.
"""

from __future__ import annotations

import numpy as np
import torch
from numba import njit
from torch import Tensor

from augury.kernels.arrays import Array, array_of, lasting

ROW_FIELDS, LINE_FIELDS, GROUP_FIELDS = 7, 5, 4  # as layout_triton.py lists them


def lay_out(
    segments: Tensor,
    history: Tensor,
    block_tables: Tensor,
    draft_tokens: Tensor,
    draft_parents: Tensor,
    rows: int,
    lines: int,
    block_size: int,
    branching: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Rows int64 [7, R], lines [5, L], groups [4, G], and the drafts' tokens and parents [G, N]."""
    groups, nodes = segments.shape[1], draft_tokens.shape[1]
    sizes = ((ROW_FIELDS, rows), (LINE_FIELDS, lines), (GROUP_FIELDS, groups), (groups, nodes), (groups, nodes))
    out = [np.empty(size, np.int64) for size in sizes]
    lay_groups(
        array_of(segments),
        lasting(history),
        lasting(block_tables),
        array_of(draft_tokens),
        array_of(draft_parents),
        block_size,
        *out,
    )
    return tuple(map(torch.from_numpy, out))  # type: ignore[return-value]


@njit(cache=True, nogil=True)
def lay_groups(
    segments: Array,
    history: Array,
    block_tables: Array,
    pending_tokens: Array,
    pending_parents: Array,
    block_size: int,
    rows: Array,
    lines: Array,
    groups: Array,
    tokens: Array,
    parents: Array,
) -> None:
    """Fill in the rows and lines of one group after another, then the padding; see lay_out."""
    row = line = 0
    for g in range(segments.shape[1]):
        slot, start, known, nodes = segments[0, g], segments[1, g], segments[2, g], segments[3, g]
        scored, active, ends = segments[4, g], segments[5, g] != 0, start + known
        groups[0, g], groups[1, g], groups[2, g], groups[3, g] = line, line + scored - 1 if active else -1, ends, row
        tokens[g], parents[g] = pending_tokens[slot], pending_parents[slot]
        for logical in range(start, ends):
            token, write = history[slot, logical], physical(block_tables, slot, logical, block_size)
            put_row(rows, row, token, logical, slot, logical + 1, ends, 0, write)
            if logical >= ends - scored:
                put_line(lines, line, row, slot, logical + 1, token, -1)
                line += 1
            row += 1
        first_node, root = row, line - 1
        for node in range(nodes):
            token, parent = tokens[g, node], parents[g, node]
            position, bits = ends, 1 << node
            if parent >= 0:
                position, bits = rows[1, first_node + parent] + 1, bits | rows[5, first_node + parent]
            write = physical(block_tables, slot, ends + node, block_size)
            put_row(rows, row, token, position, slot, ends, ends, bits, write)
            if active:
                put_line(lines, line, row, slot, position + 1, token, root + 1 + parent)
                line += 1
            row += 1
    pad(rows, row, lines, line, len(history) - 1)


@njit(cache=True, nogil=True)
def pad(rows: Array, row: int, lines: Array, line: int, nobody: int) -> None:
    """Rows and lines past those in use: they attend to nothing, their draws are not read, and they write to row 0."""
    for i in range(row, rows.shape[1]):
        put_row(rows, i, 0, 0, nobody, 0, 0, 0, 0)
    for i in range(line, lines.shape[1]):
        put_line(lines, i, 0, nobody, 1, 0, -1)


@njit(cache=True, nogil=True)
def put_row(
    rows: Array, at: int, token: int, position: int, slot: int, context: int, base: int, ancestors: int, write: int
) -> None:
    """Write all fields of a row."""
    rows[0, at], rows[1, at], rows[2, at], rows[3, at] = token, position, slot, context
    rows[4, at], rows[5, at], rows[6, at] = base, ancestors, write


@njit(cache=True, nogil=True)
def put_line(lines: Array, at: int, row: int, slot: int, position: int, token: int, parent: int) -> None:
    """Write all fields of a line."""
    lines[0, at], lines[1, at], lines[2, at], lines[3, at], lines[4, at] = row, slot, position, token, parent


@njit(cache=True, nogil=True)
def physical(block_tables: Array, slot: int, logical: int, block_size: int) -> int:
    """The physical cache row of a slot's logical one; one past the block tables is never read."""
    block = min(logical // block_size, block_tables.shape[1] - 1)
    return block_tables[slot, block] * block_size + logical % block_size
