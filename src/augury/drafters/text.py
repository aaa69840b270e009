"""Drafters that look at tokens alone."""

from __future__ import annotations

from torch import Tensor

from augury.drafters.base import Drafter, DraftInput, Needs
from augury.verify.tree import Draft


class TextDrafter(Drafter):
    """What they share: nothing of the target but its text, and as a rule nothing to remember."""

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
        """A request takes a slot."""
        self.reset(slot)
