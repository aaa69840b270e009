"""Rows of a drafter's own passes. It keeps its cache in the target's blocks: same tables, same row numbers.

So whatever the target finds again in its prefix cache, the drafter finds too, and nothing is ever copied. All of it is
tensor arithmetic with static shapes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from augury.model.target import Rows
from augury.propose.base import Turn


def fresh_rows(turn: Turn, begin: Tensor, count: Tensor) -> tuple[Rows, Tensor]:
    """Known tokens begin .. begin + count - 1 of each group, packed; also each row's group.

    The last row of each group is wanted; a group without rows wants row 0, and what comes of it is ignored.
    """
    ends = count.cumsum(0)
    place = torch.arange(_size(count, turn.most_rows), device=begin.device)
    group = torch.searchsorted(ends, place, right=True).clamp(max=len(count) - 1)
    live = place < ends[-1]
    logical = torch.where(live, begin[group] + place - (ends - count)[group], 0)
    slots = torch.where(live, turn.slots[group], 0)
    tokens = turn.history[slots, logical]
    return _rows(turn, slots, tokens, logical, live, torch.where(count > 0, ends - 1, 0)), group


def _size(count: Tensor, most: int) -> int:
    """Where looking costs nothing, just the rows needed; elsewhere the host's bound, so that nothing waits."""
    return max(1, int(count.sum())) if count.device.type == "cpu" else most


def most_steps(budget: Tensor, nodes: int) -> int:
    """How many tokens the longest draft will have, or may have where looking would mean waiting."""
    return int(budget.max()) if budget.device.type == "cpu" else nodes


def step_rows(turn: Turn, tokens: Tensor, ahead: int, live: Tensor) -> Rows:
    """One drafted token a group, `ahead` tokens past the known ones; its row sees all before it."""
    logical = torch.where(live, turn.lengths + ahead, 0)
    slots = torch.where(live, turn.slots, 0)
    return _rows(turn, slots, tokens, logical, live, torch.arange(len(tokens), device=tokens.device))


def _rows(turn: Turn, slots: Tensor, tokens: Tensor, logical: Tensor, live: Tensor, wanted: Tensor) -> Rows:
    size = turn.block_size
    write = turn.block_tables[slots, logical // size] * size + logical % size
    return Rows(
        tokens=torch.where(live, tokens, 0), positions=logical, slots=slots, context=torch.where(live, logical + 1, 0),
        base=logical, ancestors=torch.zeros_like(logical), write=torch.where(live, write, 0), wanted=wanted,
        block_tables=turn.block_tables, block_size=size, span=turn.span,
    )  # fmt: skip
