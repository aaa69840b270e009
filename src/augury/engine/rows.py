"""From segments to rows: which token goes where in one forward pass.

A segment is one request's share of a pass: `known` tokens whose keys and values are not in the cache yet (a prompt
chunk, or the one token drawn last), followed by the `nodes` of its pending draft. Everything here is tensor arithmetic
with static shapes: the same code runs eagerly on a CPU and inside a captured CUDA graph.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from augury.engine.state import SlotState
from augury.model.target import Rows
from augury.verify.sampling import Draws
from augury.verify.tree import Draft, shape_of


class Shape(NamedTuple):
    """The static side of a pass: sizes rounded up to a few values, and what the host knows of the sampling."""

    groups: int
    rows: int
    lines: int  # rows whose logits are wanted
    span: int  # cache rows in reach
    plain: bool  # no penalties, biases, barred tokens
    greedy: bool
    drafted: bool  # some group has draft nodes
    branching: bool  # some draft is more than a chain


@dataclass(slots=True)
class Segments:
    """Each group's share of the pass, int64 [G]; a padding group has known = nodes = scored = 0."""

    slots: Tensor
    start: Tensor  # known tokens already in the cache
    known: Tensor  # known tokens to run now
    nodes: Tensor  # draft nodes to run behind them
    scored: Tensor  # how many of the known rows, counted from the end, want logits: 0, 1, or all for prompt_logprobs
    active: Tensor  # bool: the last known row is the end of the sequence, so a token is drawn there
    room: Tensor  # cache rows the request has blocks for
    allowed: Tensor  # nodes it may draft next

    @classmethod
    def pack(cls, table: Tensor) -> Segments:
        """From one int64 [8, G] table, so that the host sends one small tensor a step."""
        slots, start, known, nodes, scored, active, room, allowed = table.unbind(0)
        return cls(slots, start, known, nodes, scored, active.bool(), room, allowed)


@dataclass(slots=True)
class Layout:
    """A pass laid out: rows for the target, lines to draw from, the drafts to walk."""

    rows: Rows
    draws: Draws
    draft: Draft  # [G, N]
    begin: Tensor  # int64 [G]: each group's first line
    first: Tensor  # int64 [G]: the line of each group's root, -1 where nothing is drawn
    ends: Tensor  # int64 [G]: known tokens of each group after this pass; draft node i lies in cache row ends + i


def _spread(counts: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """For `size` packed places: the group of each, its number inside the group, and whether it is in use."""
    ends = counts.cumsum(0)
    place = torch.arange(size, device=counts.device)
    group = torch.searchsorted(ends, place, right=True).clamp(max=len(counts) - 1)
    return group, place - (ends - counts)[group], place < ends[-1]


def lay_out(state: SlotState, seg: Segments, shape: Shape, count: int, block_size: int) -> Layout:
    """Lay the segments out as packed rows; `count` is the number of lines in use, as the host knows it."""
    pending = state.draft
    laws = None if pending.probs is None else pending.probs[seg.slots]
    draft = Draft(pending.tokens[seg.slots], pending.parents[seg.slots], seg.nodes, laws, branching=shape.branching)
    ends = seg.start + seg.known
    rows, positions, slots = _rows(state, seg, draft, ends, shape, block_size)

    lines = seg.scored + torch.where(seg.active, seg.nodes, 0)
    group, number, live = _spread(lines, shape.lines)
    root = seg.scored[group] - 1  # the root's number among its group's lines
    begin = lines.cumsum(0) - lines
    row_begin = (seg.known + seg.nodes).cumsum(0) - (seg.known + seg.nodes)
    row = torch.where(live, row_begin[group] + seg.known[group] - 1 - root + number, 0)
    node = (number - root - 1).clamp(min=0, max=draft.parents.shape[1] - 1)
    parent = begin[group] + root + 1 + draft.parents[group, node]
    rows.wanted = row
    draws = Draws(
        slots=slots[row], positions=positions[row] + 1, tokens=rows.tokens[row],
        parents=torch.where(live & (number > root), parent, -1),
        history=state.history, count=count, plain=shape.plain, greedy=shape.greedy,
    )  # fmt: skip
    first = torch.where(seg.active, begin + seg.scored - 1, -1)
    return Layout(rows, draws, draft, begin, first, ends)


def _rows(
    state: SlotState, seg: Segments, draft: Draft, ends: Tensor, shape: Shape, block_size: int
) -> tuple[Rows, Tensor, Tensor]:
    group, number, live = _spread(seg.known + seg.nodes, shape.rows)
    slots = torch.where(live, seg.slots[group], 0)
    logical = torch.where(live, seg.start[group] + number, 0)  # cache row, for known tokens and draft nodes alike
    base = ends[group]
    tokens = state.history[slots, logical]
    positions, context, ancestors = logical, logical + 1, torch.zeros_like(logical)
    if shape.drafted:
        depth, bits = shape_of(draft.parents)
        is_node = live & (logical >= base)
        node = torch.where(is_node, logical - base, 0)
        tokens = torch.where(is_node, draft.tokens[group, node], tokens)
        positions = torch.where(is_node, base - 1 + depth[group, node], positions)
        context = torch.where(is_node, base, context)
        ancestors = torch.where(is_node, bits[group, node], ancestors)
    write = state.block_tables[slots, logical // block_size] * block_size + logical % block_size
    rows = Rows(
        tokens=tokens, positions=positions, slots=slots, context=torch.where(live, context, 0), base=base,
        ancestors=ancestors, write=torch.where(live, write, 0), wanted=tokens, block_tables=state.block_tables,
        block_size=block_size, span=shape.span,
    )  # fmt: skip
    return rows, positions, slots


def round_up(size: int) -> int:
    """The bucket for `size` rows: a few sizes only, since every new shape costs a kernel its warm-up.

    1, 2, 3, 4, 6, 8, 12, 16, ... up to 64, then multiples of 64 up to 512, then of 256.
    """
    if size > 64:
        step = 64 if size <= 512 else 256
        return -(-size // step) * step
    power = 1 << max(0, size - 1).bit_length()
    return power * 3 // 4 if power >= 4 and size <= power * 3 // 4 else power
