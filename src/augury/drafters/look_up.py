"""Drafters that look tokens up in an index on the host."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from augury.drafters.text import TextDrafter
from augury.verify.tree import Draft


class Guesses(NamedTuple):
    """Drafts as arrays of the host, one line a request; see Draft."""

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
        device, rows = history.device, slots
        if device.type != "cpu":
            # Only the known tokens of these slots are copied to the host.
            slots, lengths, budget = slots.cpu(), lengths.cpu(), budget.cpu()
            history = history[rows, : int(lengths.max()) if len(lengths) else 0].cpu()
            rows = torch.arange(len(slots))
        made = self.guess(*(part.numpy() for part in (history, rows, slots, lengths, budget))).as_draft()
        if device.type == "cpu":
            return made
        return Draft(made.tokens.to(device), made.parents.to(device), made.count.to(device))
