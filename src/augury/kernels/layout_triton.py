"""Lay segments out as rows and lines in one kernel: one program per group, and one for the padding.

The result is that of engine/rows.py's torch code, number for number. A row is a token that the forward pass runs, a
line a row of logits from which a token is drawn.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from augury.kernels.attend_plan_triton import few_sizes

ROW_FIELDS = 7  # tokens, positions, slots, context, base, ancestors, write
LINE_FIELDS = 5  # row, slot, position, token, parent; and where there are grammars, the mask
GROUP_FIELDS = 4  # first line, root's line, known tokens after the pass, first row
CHUNK = 128  # known rows at a time


class LaidOut(NamedTuple):
    """The layout of a forward pass: tables with one row per field."""

    rows: Tensor  # int64 [7, R]
    lines: Tensor  # int64 [5 or 6, L]
    groups: Tensor  # int64 [4, G]
    draft_tokens: Tensor  # int64 [G, N]
    draft_parents: Tensor  # int64 [G, N]


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
    masks: Tensor | None = None,
) -> LaidOut:
    """Lay segments int64 [8, G] out as `rows` packed rows and `lines` packed lines.

    `masks` [S] is the first of each slot's masks, -1 for none: that of its root, and after it those of its nodes.
    """
    groups, nodes = segments.shape[1], draft_tokens.shape[1]
    new = torch.empty
    kind = {"dtype": torch.int64, "device": history.device}
    out = LaidOut(
        new(ROW_FIELDS, rows, **kind),
        new(LINE_FIELDS + (masks is not None), lines, **kind),
        new(GROUP_FIELDS, groups, **kind),
        new(groups, nodes, **kind),
        new(groups, nodes, **kind),
    )
    _lay_out[(groups + 1,)](
        segments,
        history,
        block_tables,
        draft_tokens,
        draft_parents,
        masks,
        *out,
        segments.stride(0),
        history.stride(0),
        block_tables.stride(0),
        groups,
        rows,
        lines,
        nodes,
        len(history) - 1,
        BLOCK_SIZE=block_size,
        BRANCHING=branching,
        LEVELS=nodes.bit_length(),
        GROUPS=few_sizes(groups),
        NODES=triton.next_power_of_2(max(2, nodes)),
        CHUNK=CHUNK,
    )
    return out


@triton.jit(
    do_not_specialize=[
        "field",
        "history_stride",
        "table_stride",
        "groups",
        "rows",
        "lines",
        "nodes_wide",
        "padding_slot",
    ]
)
def _lay_out(
    segments,
    history,
    block_tables,
    pending_tokens,
    pending_parents,
    masks,
    out_rows,
    out_lines,
    out_groups,
    out_tokens,
    out_parents,
    field,
    history_stride,
    table_stride,
    groups,
    rows,
    lines,
    nodes_wide,
    padding_slot,
    BLOCK_SIZE: tl.constexpr,
    BRANCHING: tl.constexpr,
    LEVELS: tl.constexpr,
    GROUPS: tl.constexpr,
    NODES: tl.constexpr,
    CHUNK: tl.constexpr,
):
    g = tl.program_id(0)
    other = tl.arange(0, GROUPS)
    there = other < tl.minimum(g, groups)  # the groups before this one
    all_known = tl.load(segments + 2 * field + other, mask=there, other=0)
    all_nodes = tl.load(segments + 3 * field + other, mask=there, other=0)
    all_scored = tl.load(segments + 4 * field + other, mask=there, other=0)
    all_active = tl.load(segments + 5 * field + other, mask=there, other=0)
    first_row = tl.sum(all_known + all_nodes, 0)
    first_line = tl.sum(all_scored + tl.where(all_active != 0, all_nodes, 0), 0)
    if g == groups:
        _pad(out_rows, out_lines, masks, first_row, first_line, rows, lines, padding_slot, CHUNK)
    else:
        slot, start = tl.load(segments + g), tl.load(segments + field + g)
        known, nodes = tl.load(segments + 2 * field + g), tl.load(segments + 3 * field + g)
        scored, active = tl.load(segments + 4 * field + g), tl.load(segments + 5 * field + g)
        ends = start + known
        tl.store(out_groups + g, first_line)
        tl.store(out_groups + groups + g, tl.where(active != 0, first_line + scored - 1, -1))
        tl.store(out_groups + 2 * groups + g, ends)
        tl.store(out_groups + 3 * groups + g, first_row)
        table = block_tables + slot * table_stride

        for begin in range(0, known, CHUNK):
            i = begin + tl.arange(0, CHUNK)
            live = i < known
            logical = start + i
            token = tl.load(history + slot * history_stride + logical, mask=live, other=0)
            write = tl.load(table + logical // BLOCK_SIZE, mask=live, other=0) * BLOCK_SIZE + logical % BLOCK_SIZE
            r = out_rows + first_row + i
            _put_row(r, rows, live, token, logical, slot, logical + 1, ends, tl.zeros_like(logical), write)
            line = i - (known - scored)
            asked = live & (line >= 0)
            _put_line(
                out_lines + first_line + line,
                lines,
                asked,
                first_row + i,
                slot,
                logical + 1,
                token,
                tl.full([CHUNK], -1, tl.int64),
            )

        n = tl.arange(0, NODES)
        inside = n < nodes_wide
        token = tl.load(pending_tokens + slot * nodes_wide + n, mask=inside, other=0)
        parent = tl.load(pending_parents + slot * nodes_wide + n, mask=inside, other=-1)
        tl.store(out_tokens + g * nodes_wide + n, token, mask=inside)
        tl.store(out_parents + g * nodes_wide + n, parent, mask=inside)
        wide = n.to(tl.int64)
        if BRANCHING:
            depth, bits = shape_of(parent, n, LEVELS, NODES)
        else:
            depth = wide + 1
            bits = (tl.full([NODES], 2, tl.int64) << tl.minimum(wide, 62)) - 1
        live = n < nodes
        logical = ends + wide
        write = tl.load(table + logical // BLOCK_SIZE, mask=live, other=0) * BLOCK_SIZE + logical % BLOCK_SIZE
        at = first_row + known + wide
        position = ends - 1 + depth
        _put_row(out_rows + at, rows, live, token, position, slot, tl.zeros_like(wide) + ends, ends, bits, write)
        drawn = live & (active != 0)
        line = first_line + scored + wide
        if masks is not None:
            _put_masks(out_lines + 5 * lines, tl.load(masks + slot), first_line, scored, active, wide, drawn)
        above = tl.where(inside, first_line + scored + parent, -1)
        _put_line(out_lines + line, lines, drawn, at, slot, position + 1, token, above)


@triton.jit
def shape_of(parent, n, LEVELS: tl.constexpr, NODES: tl.constexpr):
    """Depth and ancestor bits of every node; by pointer doubling, where a look-up is a sum over one match."""
    depth = tl.full([NODES], 1, tl.int64)
    bits = depth << tl.minimum(n, 62).to(tl.int64)
    up = parent
    for _ in tl.static_range(LEVELS):
        match = up[:, None] == n[None, :]
        higher = tl.sum(tl.where(match, up[None, :], 0), 1)
        depth += tl.sum(tl.where(match, depth[None, :], 0), 1)
        bits += tl.sum(tl.where(match, bits[None, :], 0), 1)
        up = tl.where(up >= 0, higher, -1)
    return depth, bits


@triton.jit
def _put_row(to, rows, live, token, position, slot, context, base, ancestors, write):
    tl.store(to, token, mask=live)
    tl.store(to + rows, position, mask=live)
    tl.store(to + 2 * rows, tl.zeros_like(token) + slot, mask=live)
    tl.store(to + 3 * rows, context, mask=live)
    tl.store(to + 4 * rows, tl.zeros_like(token) + base, mask=live)
    tl.store(to + 5 * rows, ancestors, mask=live)
    tl.store(to + 6 * rows, write, mask=live)


@triton.jit
def _put_line(to, lines, live, row, slot, position, token, parent):
    tl.store(to, row, mask=live)
    tl.store(to + lines, tl.zeros_like(token) + slot, mask=live)
    tl.store(to + 2 * lines, position, mask=live)
    tl.store(to + 3 * lines, token, mask=live)
    tl.store(to + 4 * lines, parent, mask=live)


@triton.jit
def _put_masks(to, begin, first_line, scored, active, node, drawn):
    """The masks of a group's lines: its root, the last of those scored, has the first, and its nodes those after it."""
    for i in range(scored - 1):
        tl.store(to + first_line + i, -1)
    if scored > 0:
        tl.store(to + first_line + scored - 1, tl.where(active != 0, begin, -1))
    tl.store(to + first_line + scored + node, tl.where(begin >= 0, begin + 1 + node, -1), mask=drawn)


@triton.jit
def _pad(out_rows, out_lines, masks, used_rows, used_lines, rows, lines, padding_slot, CHUNK: tl.constexpr):
    """Rows and lines past those in use: they attend to nothing, their draws are not read, and they write to row 0."""
    nothing = tl.zeros([CHUNK], tl.int64)
    for begin in range(used_rows, rows, CHUNK):
        r = begin + tl.arange(0, CHUNK)
        _put_row(out_rows + r, rows, r < rows, nothing, nothing, padding_slot, nothing, 0, nothing, nothing)
    for begin in range(used_lines, lines, CHUNK):
        i = begin + tl.arange(0, CHUNK)
        _put_line(out_lines + i, lines, i < lines, nothing, padding_slot, nothing + 1, nothing, nothing - 1)
        if masks is not None:
            tl.store(out_lines + 5 * lines + i, nothing - 1, mask=i < lines)
