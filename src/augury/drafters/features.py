"""Which row of the target's pass holds the features of which token.

Group g's rows are its known tokens, then its draft's nodes. What stays of them, in order, is the known tokens and the
accepted path: the *track*. Place t of the track is the token at position start + t.
"""

from __future__ import annotations

import torch
from torch import Tensor

from augury.drafters.base import Turn


def track_rows(turn: Turn, group: Tensor, place: Tensor) -> Tensor:
    """The pass's row of place `place` on the track of group `group`, int64 like both; beyond the track it is row 0."""
    begin = turn.row_begin[group]
    known = turn.known[group]
    behind = (place - known).clamp(min=0, max=max(0, turn.path.shape[1] - 1))
    node = turn.path[group, behind] if turn.path.shape[1] else torch.full_like(place, -1)
    row = torch.where(place < known, begin + place, begin + known + node)
    inside = (place >= 0) & ((place < known) | ((place < known + turn.path.shape[1]) & (node >= 0)))
    return torch.where(inside, row, 0)


def track_lengths(turn: Turn) -> Tensor:
    """Tokens on each group's track: those whose features this pass made for good, int64 [G]."""
    return turn.known + (turn.path >= 0).sum(1)


def last_features(turn: Turn) -> tuple[Tensor, ...]:
    """The features of the last token on each track, [G, hidden] each: what the newest token was drawn from."""
    groups = torch.arange(len(turn.slots), device=turn.slots.device)
    rows = track_rows(turn, groups, track_lengths(turn) - 1)
    return tuple(stream[rows] for stream in turn.features)
