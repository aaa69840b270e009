"""Drafts of a language model as branches of its text: from every row of whole batches, in a few passes.

A branch is what row r drafts, and follows the text in the same sequence. Its row at depth d (the first is 1) has
position r + 1 + d and attends to the text up to token r + 1 and to its own rows before it, by a mask. The mask is the
same for all texts of a batch: padding comes after every row that counts.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def sight(length: int, branches: list[Tensor]) -> Tensor:
    """Which rows see which, bool [N, N]: `length` rows of text, and one row for each branch of every depth.

    `branches` has for each depth the branches int64 [n] that reach it, by the row of the text they begin at.
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


def masked_states(model: Any, tokens: Tensor, branches: list[Tensor], mask: Tensor) -> list[Tensor]:
    """Normed states of the text [B, T, H] and of every depth [B, n, H] of branches made of masks, in one pass.

    `mask` [H] is the embedding of a mask.
    """
    count, length = tokens.shape
    widths = [length, *map(len, branches)]
    text: Tensor = model.embed_tokens(tokens)
    x = torch.cat([text, mask.to(text.dtype).expand(count, sum(widths[1:]), -1)], dim=1)
    seen, positions = sight(length, branches), places_of(length, branches)
    return list(decoded(model, x, positions, seen).split(widths, dim=1))


def decoded(model: Any, x: Tensor, positions: Tensor, seen: Tensor | None = None, cache: Any = None) -> Tensor:
    """Normed states [B, Q, H] of embedded tokens [B, Q, H] at positions [Q]; without `seen` each row sees those before.

    Runs the layers of transformers' model without the code around them, which reads a mask's content from the device:
    steps are recorded as CUDA graphs, and nothing may wait for the device in a recording.
    """
    turned = model.rotary_emb(x, positions[None])
    for layer in model.layers:
        out = layer(
            x,
            attention_mask=None if seen is None else seen[None, None],
            position_ids=positions[None],
            position_embeddings=turned,
            past_key_values=cache,
            use_cache=cache is not None,
        )
        x = out if isinstance(out, Tensor) else out[0]
    normed: Tensor = model.norm(x)
    return normed


class Branching:
    """Branches that are drafted token by token, over the cached keys of the text and of their own rows."""

    def __init__(self, model: Any, tokens: Tensor) -> None:
        from transformers import DynamicCache

        self._model, self._cache, self._length = model, DynamicCache(), tokens.shape[1]
        self._rows = torch.arange(self._length - 1, device=tokens.device)
        positions = torch.arange(self._length, device=tokens.device)
        #: the states of each row's newest token, [B, R, H]
        self.states = decoded(model, model.embed_tokens(tokens), positions, cache=self._cache)[:, 1:]
        self._depth = 0

    def write(self, tokens: Tensor) -> Tensor:
        """Append one token [B, R] to every branch; returns the states at them."""
        self._depth += 1
        seen = sight(self._length, [self._rows] * self._depth)[-len(self._rows) :]
        self.states = decoded(
            self._model, self._model.embed_tokens(tokens), self._rows + 1 + self._depth, seen, self._cache
        )
        return self.states
