"""Drafts of a language model as branches of its text: from every row of whole batches, in a few passes.

A branch is what row r drafts, and lies behind the text in the same sequence. Its row at depth d (the first is 1) stands
at position r + 1 + d and sees the text up to token r + 1 and its own rows before it, which a mask says. The mask is the
same for all texts of a batch: padding stands behind every row that counts.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def sight(length: int, branches: list[Tensor]) -> Tensor:
    """Which rows see which, bool [N, N]: `length` rows of text, and one row for each branch of every depth.

    Each depth has the branches int64 [n] that reach it, by the row of the text they begin at.
    """
    device = branches[0].device
    text = torch.arange(length, device=device)
    root = torch.cat([text - 1, *branches])  # a row of text at position p ends what row p - 1 knows
    depth = torch.cat([torch.zeros_like(text), *(torch.full_like(b, d) for d, b in enumerate(branches, 1))])
    before = (depth == 0) & (root <= root[:, None])
    mine = (depth > 0) & (root == root[:, None]) & (depth <= depth[:, None])
    return before | mine


def places_of(length: int, branches: list[Tensor]) -> Tensor:
    """Positions of all those rows, int64 [N]."""
    text = torch.arange(length, device=branches[0].device)
    return torch.cat([text, *(b + 1 + d for d, b in enumerate(branches, 1))])


def masked_states(model: Any, tokens: Tensor, branches: list[Tensor], mask: int) -> list[Tensor]:
    """Normed states of the text [B, T, H] and of every depth [B, n, H] of branches made of mask tokens, in one pass."""
    count, length = tokens.shape
    widths = [length, *map(len, branches)]
    filled = tokens.new_full((count, sum(widths[1:])), mask)
    states: Tensor = model(
        input_ids=torch.cat([tokens, filled], dim=1),
        attention_mask=sight(length, branches)[None, None],
        position_ids=places_of(length, branches)[None],
        use_cache=False,
    ).last_hidden_state
    return list(states.split(widths, dim=1))


class Branching:
    """Branches that are written token by token, over the keys of the text and of their own rows."""

    def __init__(self, model: Any, tokens: Tensor) -> None:
        from transformers import DynamicCache

        self._model, self._cache, self._length = model, DynamicCache(), tokens.shape[1]
        self._rows = torch.arange(self._length - 1, device=tokens.device)
        found = model(input_ids=tokens, past_key_values=self._cache, use_cache=True).last_hidden_state
        self.states: Tensor = found[:, 1:]  # those of each row's newest token, [B, R, H]
        self._depth = 0

    def write(self, tokens: Tensor) -> Tensor:
        """Put one token [B, R] behind every branch; the states at them."""
        self._depth += 1
        seen = sight(self._length, [self._rows] * self._depth)[-len(self._rows) :]
        self.states = self._model(
            input_ids=tokens,
            past_key_values=self._cache,
            attention_mask=seen[None, None],
            position_ids=(self._rows + 1 + self._depth)[None],
            use_cache=True,
        ).last_hidden_state
        return self.states
