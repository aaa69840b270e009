"""Sampling parameters of every slot, as tensors, and the rows to draw from.

The transforms themselves (the reference and the fast versions) are in kernels/verify.py; this file says what they read.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(slots=True)
class SlotSampling:
    """The sampling parameters of each slot, one entry per slot; wide tables exist only once a request needs them."""

    temperature: Tensor  # float32 [S]; 0 is greedy
    top_k: Tensor  # int64 [S]; 0 is off
    top_p: Tensor  # float32 [S]; 1 is off
    min_p: Tensor  # float32 [S]; 0 is off
    repetition: Tensor  # float32 [S]; 1 is off
    presence: Tensor  # float32 [S]
    frequency: Tensor  # float32 [S]
    seed: Tensor  # int64 [S]
    min_length: Tensor  # int64 [S]: tokens at positions before this may not be one of `stops`
    penalized: Tensor  # bool [S]: any of the three penalties is on
    biased: Tensor  # bool [S]: `bias` holds something for this slot
    stops: Tensor  # int64 [S, E], padded with -1
    bad_words: Tensor  # int64 [S, W, T]: sequences, right-aligned, padded on the left with -1; all -1 is unused
    counts: Tensor | None = None  # int32 [S, V]: how often the slot has generated each token
    in_prompt: Tensor | None = None  # bool [S, V]
    bias: Tensor | None = None  # float32 [S, V]; -inf bans a token

    @classmethod
    def allocate(cls, slots: int, device: torch.device | str = "cpu") -> SlotSampling:
        """Greedy everywhere, no tables."""

        def full(value: float, dtype: torch.dtype, *shape: int) -> Tensor:
            return torch.full((slots, *shape), value, dtype=dtype, device=device)

        f32, i64 = torch.float32, torch.int64
        return cls(
            temperature=full(0, f32),
            top_k=full(0, i64),
            top_p=full(1, f32),
            min_p=full(0, f32),
            repetition=full(1, f32),
            presence=full(0, f32),
            frequency=full(0, f32),
            seed=full(0, i64),
            min_length=full(0, i64),
            penalized=full(0, torch.bool),
            biased=full(0, torch.bool),
            stops=full(-1, i64, 1),
            bad_words=full(-1, i64, 1, 1),
        )


@dataclass(slots=True)
class Masks:
    """Grammar masks of some of the lines."""

    bits: Tensor  # int32 [M, ceil(V / 32)]: bit t % 32 of word t // 32 is set where token t may come
    rows: Tensor  # int64 [L]: which of these masks is the line's, -1 for a line without one


@dataclass(slots=True)
class Draws:
    """The rows to draw from, packed; line i of the logits belongs to line i here. Lines past `count` are padding."""

    slots: Tensor  # int64 [L]
    positions: Tensor  # int64 [L]: absolute position of the token to be drawn; with the slot's seed it keys the noise
    tokens: Tensor  # int64 [L]: the row's own token, the last of the history the draw continues
    parents: Tensor  # int64 [L]: the line, in this list, of the row's parent; -1 for a root
    history: Tensor  # int64 [S, max_len]: known tokens; a root's own token stands at positions[root] - 1
    count: int  # lines in use, as the host knows it
    plain: bool = False  # the host knows that no slot here uses penalties, bias, stops or bad words
    greedy: bool = False  # the host knows that every slot here is greedy
    masks: Masks | None = None  # None: no grammar here; otherwise `plain` is False
    own_words: bool = False  # the logits are of this rank's share of the vocabulary; then `plain`, nothing is filtered


@dataclass(slots=True)
class Outcome:
    """A step's result, one row per group (a running request); an inactive group (unfinished prompt) emits nothing."""

    emitted: Tensor  # int64 [G, N+1]: accepted drafts and one more token; past `emitted_count` it is -1
    emitted_count: Tensor  # int64 [G]: accepted + 1, or 0 for an inactive group
    accepted: Tensor  # int64 [G]: drafts accepted
    path: Tensor  # int64 [G, N]: accepted node numbers from the root down, -1 past the end
