"""A drafter of a set number of meaningless tokens, for timing steps of a known size."""

from __future__ import annotations

import torch

from augury.drafters.base import Drafter, DraftInput, Needs
from augury.verify.tree import Draft, chain_parents


class RowsDrafter(Drafter):
    """Drafts the same token `tokens` times for every request."""

    name = "rows"
    needs = Needs()
    branching = False
    on_host = True

    def __init__(self, most: int, token: int) -> None:
        """`most` is the longest draft that the engine's slots have room for."""
        self.most, self.token, self.tokens = most, token, 0

    def propose(self, inputs: DraftInput) -> Draft:
        """A chain of `tokens` tokens for each slot, within the engine's budget."""
        groups = len(inputs.slots)
        ids = torch.full((groups, self.most), self.token, dtype=torch.int64, device=inputs.slots.device)
        return Draft(ids, chain_parents(groups, self.most, inputs.slots.device), inputs.budget.clamp(max=self.tokens))
