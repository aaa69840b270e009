"""Drafters that look at tokens alone."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from augury.drafters.base import Drafter, DraftInput, Needs
from augury.verify.tree import Draft

REHEARSAL = "rehearsal"  # no request has such a name


class TextDrafter(Drafter):
    """Base of drafters that read only the text, and as a rule keep no state."""

    name = ""
    needs = Needs()
    branching = False
    on_host = True

    def propose(self, inputs: DraftInput) -> Draft:
        """See Drafter.propose."""
        return self.draft(inputs.slots, inputs.lengths, inputs.history, inputs.budget)

    def draft(self, slots: Tensor, lengths: Tensor, history: Tensor, budget: Tensor) -> Draft:
        """Draft for int64 [G] slots from history[s, :lengths[g]], at most budget[g] nodes each."""
        raise NotImplementedError

    def admit(self, slot: int, prompt_len: int, cached: int, tenant: str, request: str) -> None:
        """See Drafter.admit."""
        self.reset(slot)

    def rehearse(self, device: torch.device) -> None:
        """Draft for a made-up request in slot 0, so that no real one waits while the index is compiled."""
        history, slots = torch.tensor([[1, 2, 3] * 4], device=device), torch.zeros(1, dtype=torch.int64, device=device)
        self.admit(0, 6, 0, "", REHEARSAL)
        for length in (6, 7, history.shape[1]):
            self.draft(slots, slots + length, history, slots + 1)
        self.reset(0)


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
    """Looks tokens up in an index on the host, in arrays: between two passes torch would cost more than the look-up."""

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
