"""Drafters that look at tokens alone."""

from __future__ import annotations

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
