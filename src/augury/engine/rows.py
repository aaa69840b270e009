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
from augury.kernels.faces import face
from augury.kernels.rows import Rows
from augury.methods.spec import MAX_NODES
from augury.verify.sampling import Draws, Masks
from augury.verify.tree import Draft, shape_of

RESTS = -1  # the `draft_depth` of a pass in which the drafter rests: it does not even read


class StepShape(NamedTuple):
    """The static shape of a pass: sizes rounded up to a few values, and what the host knows of the sampling."""

    groups: int
    rows: int
    logits_rows: int  # rows whose logits are wanted
    span: int  # cache rows in reach
    plain: bool  # no penalties, biases, barred tokens
    greedy: bool
    drafted: bool  # some group has draft nodes
    branching: bool  # some draft is more than a chain
    steady: bool = False  # every request drew a token in the pass before: none reads a prompt
    adapted: bool = False  # a request has a LoRA adapter
    own_words: bool = False  # each rank draws from its share of the vocabulary: no request needs all logits
    draft_depth: int = MAX_NODES  # how deep the drafter drafts, in a graph that stops short of its full depth


@dataclass(slots=True)
class Segments:
    """What each group runs in the pass, int64 [G]; a padding group has no new tokens, nodes or scored rows."""

    slots: Tensor
    start: Tensor  # known tokens already in the cache
    num_new_tokens: Tensor  # known tokens to run now
    nodes: Tensor  # draft nodes to run after them
    scored: Tensor  # how many of the known rows, counted from the end, want logits: 0, 1, or all for prompt_logprobs
    active: Tensor  # bool: the last known row is the end of the sequence, so a token is drawn there
    reserved_rows: Tensor  # cache rows the request has blocks for
    allowed: Tensor  # nodes it may draft next
    table: Tensor  # int64 [8, G]: all of these as the host sent them

    @classmethod
    def pack(cls, table: Tensor) -> Segments:
        """From one int64 [8, G] table, so that the host sends one small tensor a step."""
        slots, start, num_new_tokens, nodes, scored, active, reserved_rows, allowed = table.unbind(0)
        return cls(slots, start, num_new_tokens, nodes, scored, active.bool(), reserved_rows, allowed, table)


@dataclass(slots=True)
class PassLayout:
    """A pass laid out: rows for the target, lines to draw from, the drafts to walk."""

    rows: Rows
    draws: Draws
    draft: Draft  # [G, N]
    begin: Tensor  # int64 [G]: each group's first line
    first: Tensor  # int64 [G]: the line of each group's root, -1 where nothing is drawn
    ends: Tensor  # int64 [G]: known tokens of each group after this pass; draft node i lies in cache row ends + i
    row_begin: Tensor  # int64 [G]: each group's first row


def _spread(counts: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """For `size` packed places: the group of each, its number inside the group, and whether it is in use."""
    ends = counts.cumsum(0)
    place = torch.arange(size, device=counts.device)
    group = torch.searchsorted(ends, place, right=True).clamp(max=len(counts) - 1)
    return group, place - (ends - counts)[group], place < ends[-1]


def lay_out(state: SlotState, table: Tensor, shape: StepShape, count: int, block_size: int) -> PassLayout:
    """Lay segments int64 [8, G] out as packed rows; `count` is the number of lines in use, as the host knows it."""
    lay = _with_torch if face(table.device) == "torch" else _in_one_kernel
    fields, logits_rows, groups, tokens, parents = lay(state, table, shape, block_size)
    probs = None if state.draft.probs is None else state.draft.probs[table[0]]
    masks = None
    if state.masks is not None:
        own = logits_rows[5] if len(logits_rows) > 5 else state.masks.lines(table[0], groups[1], logits_rows[1])
        masks = Masks(state.masks.bits, own)
    return PassLayout(
        rows=_target_rows(state, fields, logits_rows[0], shape, block_size),
        draws=Draws(
            slots=logits_rows[1],
            positions=logits_rows[2],
            tokens=logits_rows[3],
            parents=logits_rows[4],
            history=state.history,
            count=count,
            plain=shape.plain,
            greedy=shape.greedy,
            masks=masks,
            own_words=shape.own_words,
        ),
        draft=Draft(tokens, parents, table[3], probs, branching=shape.branching),
        begin=groups[0],
        first=groups[1],
        ends=groups[2],
        row_begin=groups[3],
    )


def _target_rows(state: SlotState, fields: Tensor, wanted: Tensor, shape: StepShape, block_size: int) -> Rows:
    """The target's input: the fields of its rows [7, R], and where their context lies."""
    tokens, positions, slots, context, base, ancestors, write = fields.unbind(0)
    return Rows(
        tokens,
        positions,
        slots,
        context,
        base,
        ancestors,
        write,
        wanted=wanted,
        block_tables=state.block_tables,
        block_size=block_size,
        span=shape.span,
        chunked=not shape.steady,
        groups=shape.groups,
        long=None if state.long is None else state.long[slots],
        adapters=state.adapters[slots] if shape.adapted else None,
        own_words=shape.own_words,
    )


Laid = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
"""Fields of rows [7, R], lines [5 or 6, L], groups [4, G], the drafts' tokens and parents [G, N]; see layout_triton."""


def _in_one_kernel(state: SlotState, table: Tensor, shape: StepShape, block_size: int) -> Laid:
    pending = state.draft
    given = table, state.history, state.block_tables, pending.tokens, pending.parents
    sizes = shape.rows, shape.logits_rows, block_size, shape.branching
    if face(table.device) == "numba":
        from augury.kernels import layout_numba

        return layout_numba.lay_out(*given, *sizes)
    from augury.kernels import layout_triton

    return layout_triton.lay_out(*given, *sizes, None if state.masks is None else state.masks.begin)


def _with_torch(state: SlotState, table: Tensor, shape: StepShape, block_size: int) -> Laid:
    """The torch reference of the kernels."""
    seg, pending = Segments.pack(table), state.draft
    draft = Draft(pending.tokens[seg.slots], pending.parents[seg.slots], seg.nodes, branching=shape.branching)
    ends = seg.start + seg.num_new_tokens
    rows = _rows(state, seg, draft, ends, shape, block_size)
    tokens, positions, slots = rows[:3]

    logits_rows = seg.scored + torch.where(seg.active, seg.nodes, 0)
    group, number, live = _spread(logits_rows, shape.logits_rows)
    root = seg.scored[group] - 1  # the root's number among its group's lines
    begin = logits_rows.cumsum(0) - logits_rows
    row_begin = (seg.num_new_tokens + seg.nodes).cumsum(0) - (seg.num_new_tokens + seg.nodes)
    row = torch.where(live, row_begin[group] + seg.num_new_tokens[group] - 1 - root + number, 0)
    node = (number - root - 1).clamp(min=0, max=draft.parents.shape[1] - 1)
    parent = begin[group] + root + 1 + draft.parents[group, node]
    fields = (
        row,
        torch.where(live, slots[row], state.padding_slot),
        torch.where(live, positions[row], 0) + 1,
        torch.where(live, tokens[row], 0),
        torch.where(live & (number > root), parent, -1),
    )
    first = torch.where(seg.active, begin + seg.scored - 1, -1)
    return rows, torch.stack(fields), torch.stack((begin, first, ends, row_begin)), draft.tokens, draft.parents


def _rows(state: SlotState, seg: Segments, draft: Draft, ends: Tensor, shape: StepShape, block_size: int) -> Tensor:
    group, number, live = _spread(seg.num_new_tokens + seg.nodes, shape.rows)
    slots = torch.where(live, seg.slots[group], state.padding_slot)
    logical = torch.where(live, seg.start[group] + number, 0)  # cache row, for known tokens and draft nodes alike
    base = torch.where(live, ends[group], 0)
    tokens = torch.where(live, state.history[slots, logical], 0)
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
    context, write = torch.where(live, context, 0), torch.where(live, write, 0)
    return torch.stack((tokens, positions, slots, context, base, ancestors, write))


def round_up(size: int) -> int:
    """The bucket for `size` rows: a few sizes only, since every new shape costs a kernel its warm-up.

    1, 2, 3, 4, 6, 8, 12, 16, ... up to 64, then multiples of 64 up to 512, then of 256.
    """
    if size > 64:
        step = 64 if size <= 512 else 256
        return -(-size // step) * step
    power = 1 << max(0, size - 1).bit_length()
    return power * 3 // 4 if power >= 4 and size <= power * 3 // 4 else power


def row_sizes(groups: int, nodes: int, depths: tuple[int, ...] = ()) -> list[int]:
    """Numbers of rows that graphs for so many groups have, in ascending order: as drafts of these depths need, or else
    no drafts, half of all, all of them."""
    whole = groups * (1 + nodes)
    if depths:
        return sorted({groups, *(round_up(groups * (1 + depth)) for depth in depths), round_up(whole)})
    return sorted({groups, max(groups, round_up(-(-whole // 2))), round_up(whole)})
