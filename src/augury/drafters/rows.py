"""Rows of a drafter's own forward passes. It keeps its cache in the target's blocks: same tables, same row numbers.

So whatever the target finds again in its prefix cache, the drafter finds too, and nothing is ever copied. A drafter
that reads (token, feature of the token before it) keeps that pair in the row of the *token*: `shift` is 1 there, row 0
stays empty, and rotary positions are those of the feature. All of it is tensor arithmetic with static shapes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from augury.drafters.base import DraftInput
from augury.kernels.faces import face
from augury.kernels.rows import Rows


@dataclass(slots=True)
class UnreadRows:
    """Packed rows for what a drafter has not read yet, and where each belongs."""

    rows: Rows
    group: Tensor  # int64 [R]
    number: Tensor  # int64 [R]: place inside the group, counted from its first row
    live: Tensor  # [R]: not padding
    places: Tensor  # int64 [3, R]: these three in one


def fresh_rows(
    inputs: DraftInput,
    begin: Tensor,
    count: Tensor,
    shift: int = 0,
    masks: int = 0,
    mask: int = 0,
    read_only: bool = False,
) -> UnreadRows:
    """Known tokens begin .. begin + count - 1 of each group, and `masks` rows of token `mask` after them.

    Logits are wanted for the last known row of each group and every mask after it, [G * (1 + masks)]; a group without
    rows has row 0 there, whose logits are ignored. If they are only read, none are wanted.
    """
    fresh = _fresh(inputs, begin, count, shift, masks, mask)
    if read_only:
        fresh.rows.wanted = fresh.rows.wanted[:0]
    return fresh


def _fresh(inputs: DraftInput, begin: Tensor, count: Tensor, shift: int, masks: int, mask: int) -> UnreadRows:
    if face(begin.device) != "torch":
        rows, places, wanted = _kernels(begin.device).fresh_rows(
            inputs.slots,
            begin,
            count,
            inputs.history,
            inputs.block_tables,
            _size(inputs, count, masks),
            inputs.block_size,
            shift,
            masks,
            mask,
        )
        return UnreadRows(_packed(inputs, rows, wanted, shift), places[0], places[1], places[2], places)
    return _fresh_with_torch(inputs, begin, count, shift, masks, mask)


def _kernels(device: torch.device) -> Any:
    """The kernels for a device, each of which makes the rows of a pass."""
    if face(device) == "numba":
        from augury.kernels import draft_rows_numba

        return draft_rows_numba
    from augury.kernels import draft_rows_triton

    return draft_rows_triton


def _fresh_with_torch(
    inputs: DraftInput, begin: Tensor, count: Tensor, shift: int, masks: int, mask: int
) -> UnreadRows:
    """The torch reference of the kernels."""
    sizes = torch.where(count > 0, count + masks, 0)
    ends = sizes.cumsum(0)
    place = torch.arange(_size(inputs, count, masks), device=begin.device)
    group = torch.searchsorted(ends, place, right=True).clamp(max=len(count) - 1)
    live = place < ends[-1]
    number = place - (ends - sizes)[group]
    logical = torch.where(live, begin[group] + number, 0)
    slots = torch.where(live, inputs.slots[group], _nobody(inputs))
    tokens = inputs.history[slots, logical.clamp(max=inputs.history.shape[1] - 1)]
    if masks:
        tokens = torch.where(number >= count[group], mask, tokens)
    last = (ends - 1 - masks)[:, None] + torch.arange(masks + 1, device=begin.device)
    wanted = torch.where(count[:, None] > 0, last, 0).flatten()
    rows = _rows(inputs, slots, tokens, logical, live, wanted, shift)
    return UnreadRows(rows, group, number, live, torch.stack((group, number, live.long())))


def _nobody(inputs: DraftInput) -> int:
    """The slot of padding rows."""
    return len(inputs.block_tables) - 1


def _size(inputs: DraftInput, count: Tensor, masks: int) -> int:
    """Number of rows: on a CPU just those needed, on a GPU the host's bound, so that nothing waits for the counts."""
    if count.device.type != "cpu" or face(count.device) == "triton":
        return inputs.most_rows + masks * len(count)
    known: list[int] = count.tolist()
    return max(1, sum(number + masks for number in known if number > 0))


def most_steps(inputs: DraftInput, budget: Tensor, nodes: int) -> int:
    """Tokens of the longest draft; on a GPU an upper bound, because reading the budgets would mean waiting."""
    return int(budget.max()) if budget.device.type == "cpu" else min(nodes, inputs.most_nodes)


def step_rows(inputs: DraftInput, tokens: Tensor, ahead: int, budget: Tensor, shift: int = 0) -> Rows:
    """Rows of one drafted token per group, `ahead` past the known ones, if another is to follow; it attends to all
    before it."""
    wanted = torch.arange(len(tokens), device=tokens.device)
    if face(tokens.device) != "torch":
        return _level_in_one_kernel(inputs, tokens[:, None], None, 0, ahead, budget, ahead + 2, wanted, shift)
    live = budget > ahead + 1
    logical = torch.where(live, inputs.lengths + ahead, 0)
    slots = torch.where(live, inputs.slots, _nobody(inputs))
    return _rows(inputs, slots, tokens, logical, live, wanted, shift)


def level_rows(
    inputs: DraftInput, tokens: Tensor, bits: Tensor, depth: int, number: int, budget: Tensor, shift: int = 0
) -> Rows:
    """A level of a draft tree, [G, W] nodes `depth` below the last known token, the first of them node `number`.

    A node attends to the known text and its own ancestors, given as bits in the drafter's own numbering.
    """
    groups, width = tokens.shape
    wanted = torch.arange(groups * width, device=tokens.device)
    if face(tokens.device) != "torch":
        return _level_in_one_kernel(inputs, tokens, bits.contiguous(), depth, number, budget, 1, wanted, shift)
    offset = torch.arange(number, number + width, device=tokens.device)
    alive = (budget > 0)[:, None].expand(groups, width).flatten()
    base = torch.where(alive, inputs.lengths[:, None].expand(groups, width).flatten(), 0)
    logical = torch.where(alive, (inputs.lengths[:, None] + offset).flatten(), 0)
    slots = torch.where(alive, inputs.slots[:, None].expand(groups, width).flatten(), _nobody(inputs))
    rows = _rows(inputs, slots, tokens.flatten(), logical, alive, wanted, shift)
    rows.positions = torch.where(alive, base - 1 + depth - shift, 0)
    rows.context, rows.base = base, base
    rows.ancestors = torch.where(alive, bits.flatten(), 0)
    return rows


def _level_in_one_kernel(
    inputs: DraftInput,
    tokens: Tensor,
    bits: Tensor | None,
    depth: int,
    number: int,
    budget: Tensor,
    least: int,
    wanted: Tensor,
    shift: int,
) -> Rows:
    rows = _kernels(tokens.device).level_rows(
        inputs.slots,
        inputs.lengths,
        budget,
        tokens,
        bits,
        inputs.block_tables,
        inputs.block_size,
        depth,
        number,
        least,
        shift,
    )
    return _packed(inputs, rows, wanted, shift, chunked=False)


def _packed(inputs: DraftInput, rows: Tensor, wanted: Tensor, shift: int, chunked: bool | None = None) -> Rows:
    tokens, positions, slots, context, base, ancestors, write = rows.unbind(0)
    return Rows(
        tokens,
        positions,
        slots,
        context,
        base,
        ancestors,
        write,
        wanted=wanted,
        block_tables=inputs.block_tables,
        block_size=inputs.block_size,
        span=inputs.span,
        first=shift,
        groups=len(inputs.slots),
        chunked=inputs.chunked if chunked is None else chunked,
    )


def _rows(
    inputs: DraftInput, slots: Tensor, tokens: Tensor, logical: Tensor, live: Tensor, wanted: Tensor, shift: int
) -> Rows:
    return Rows(
        tokens=torch.where(live, tokens, 0),
        positions=(logical - shift).clamp(min=0),
        slots=slots,
        context=torch.where(live, logical + 1, 0),
        base=logical,
        ancestors=torch.zeros_like(logical),
        write=torch.where(live, physical(inputs, slots, logical), 0),
        wanted=wanted,
        block_tables=inputs.block_tables,
        block_size=inputs.block_size,
        span=inputs.span,
        first=shift,
        groups=len(inputs.slots),
        chunked=inputs.chunked,
    )


def physical(inputs: DraftInput, slots: Tensor, logical: Tensor) -> Tensor:
    """Physical cache rows of logical ones, by the block tables."""
    block = (logical // inputs.block_size).clamp(max=inputs.block_tables.shape[1] - 1)
    return inputs.block_tables[slots, block] * inputs.block_size + logical % inputs.block_size
