"""Which row of the target's pass holds the features of which token.

Group g's rows are its known tokens, then its draft's nodes. What stays of them, in order, is the known tokens and the
accepted path: the *track*. Place t of the track is the token at position start + t.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from augury.drafters.base import DraftInput


def track_rows(inputs: DraftInput, group: Tensor, place: Tensor) -> Tensor:
    """The pass's row of place `place` on the track of group `group`, int64 like both; beyond the track it is row 0."""
    begin = inputs.row_begin[group]
    num_new_tokens = inputs.num_new_tokens[group]
    behind = (place - num_new_tokens).clamp(min=0, max=max(0, inputs.path.shape[1] - 1))
    node = inputs.path[group, behind] if inputs.path.shape[1] else torch.full_like(place, -1)
    row = torch.where(place < num_new_tokens, begin + place, begin + num_new_tokens + node)
    inside = (place >= 0) & ((place < num_new_tokens) | ((place < num_new_tokens + inputs.path.shape[1]) & (node >= 0)))
    return torch.where(inside, row, 0)


def track_lengths(inputs: DraftInput) -> Tensor:
    """Tokens on each group's track: those whose features this pass made for good, int64 [G]."""
    return inputs.num_new_tokens + (inputs.path >= 0).sum(1)


def last_features(inputs: DraftInput) -> tuple[Tensor, ...]:
    """The features of the last token on each track, [G, hidden] each: what the newest token was drawn from."""
    groups = torch.arange(len(inputs.slots), device=inputs.slots.device)
    rows = track_rows(inputs, groups, track_lengths(inputs) - 1)
    return tuple(stream[rows] for stream in inputs.features)


def along_tracks(inputs: DraftInput) -> DraftInput:
    """The same pass as if every token of each track had been known: accepted tokens follow the others directly."""
    if not bool(inputs.nodes.any()):
        return inputs
    lengths = track_lengths(inputs)
    begin = lengths.cumsum(0) - lengths
    group = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
    rows = track_rows(inputs, group, torch.arange(len(group)) - begin[group])
    return replace(
        inputs,
        features=tuple(stream[rows] for stream in inputs.features),
        row_begin=begin,
        num_new_tokens=lengths,
        nodes=torch.zeros_like(lengths),
        path=inputs.path[:, :0],
    )
