"""Drafters that look tokens up in an index on the host."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from augury.drafters.text import TextDrafter
from augury.verify.tree import Draft


class HostText(NamedTuple):
    """The texts of a batch on the host, as look-ups take them; a text of length 0 is padding."""

    texts: np.ndarray
    rows: np.ndarray  # int64 [G]: the row of `texts` that holds a group's text
    slots: np.ndarray  # int64 [G]
    lengths: np.ndarray  # int64 [G]
    budget: np.ndarray  # int64 [G]: nodes that may be drafted

    @classmethod
    def of(cls, slots: Tensor, lengths: Tensor, history: Tensor, budget: Tensor) -> HostText:
        """On a GPU only the known tokens of these slots are copied."""
        if history.device.type == "cpu":
            rows = slots.numpy()
            return cls(history.numpy(), rows, rows, lengths.numpy(), budget.numpy())
        known = lengths.cpu()
        texts = history[slots, : int(known.max()) if len(known) else 0].cpu().numpy()
        return cls(texts, np.arange(len(known)), slots.cpu().numpy(), known.numpy(), budget.cpu().numpy())


class Guesses(NamedTuple):
    """Drafts as arrays on the host, one row per request; see Draft."""

    tokens: np.ndarray  # int64 [G, N]
    parents: np.ndarray  # int64 [G, N]
    counts: np.ndarray  # int64 [G]

    def as_draft(self) -> Draft:
        """The same as tensors, still on the host."""
        tokens, parents, counts = map(torch.from_numpy, self)
        return Draft(tokens, parents, counts)


class LookUpDrafter(TextDrafter):
    """Works on arrays: between two passes, calls of torch would take longer than the look-up."""

    looks_up = True

    def guess(
        self, texts: np.ndarray, rows: np.ndarray, slots: np.ndarray, lengths: np.ndarray, budget: np.ndarray
    ) -> Guesses:
        """At most budget[g] nodes for slot slots[g], whose text is texts[rows[g], :lengths[g]]; length 0 is padding."""
        raise NotImplementedError

    def draft(self, slots: Tensor, lengths: Tensor, history: Tensor, budget: Tensor) -> Draft:
        """See TextDrafter.draft."""
        made, device = self.guess(*HostText.of(slots, lengths, history, budget)).as_draft(), history.device
        if device.type == "cpu":
            return made
        return Draft(made.tokens.to(device), made.parents.to(device), made.count.to(device))
