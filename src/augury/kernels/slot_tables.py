"""What the walk after the draw reads and writes of the slots, and what it decides; for Triton and numba."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class SlotTables(NamedTuple):
    """What a walk reads and writes of the slots; SlotState of engine/state.py says what each is."""

    history: Tensor  # int64 [S, width]
    length: Tensor  # int64 [S]
    alive: Tensor  # int64 [S]
    limit: Tensor  # int64 [S]
    end_tokens: Tensor  # int64 [S, E], E a power of two
    counts: Tensor | None  # int32 [S, V]: how often each token was emitted
    seeds: Tensor  # int64 [S]


class Walked(NamedTuple):
    """What a walk decides, one row per group."""

    summary: Tensor  # int64 [G, N + 3]: drafts accepted, tokens emitted, the tokens (-1 past their count)
    path: Tensor  # int64 [G, N]: accepted node numbers from the root down, -1 past the end
    lengths: Tensor  # int64 [G]: tokens known now
    budget: Tensor  # int64 [G]: nodes it may draft next
