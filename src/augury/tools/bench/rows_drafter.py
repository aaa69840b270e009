"""A drafter that drafts as many tokens as it is told and means none of them: for timing steps of a known size."""

from __future__ import annotations

import torch

from augury.drafters.base import Needs, Turn
from augury.verify.sampling import Outcome
from augury.verify.tree import Draft, chain_parents


class RowsDrafter:
    """The same token, `tokens` times, for everyone."""

    name = "rows"
    needs = Needs()
    branching = False
    on_host = True

    def __init__(self, most: int, token: int) -> None:
        """`most` is what the engine's slots have room for."""
        self.most, self.token, self.tokens = most, token, 0

    def propose(self, turn: Turn) -> Draft:
        """Within the engine's budget."""
        groups = len(turn.slots)
        ids = torch.full((groups, self.most), self.token, dtype=torch.int64, device=turn.slots.device)
        return Draft(ids, chain_parents(groups, self.most, turn.slots.device), turn.budget.clamp(max=self.tokens))

    def observe(self, outcome: Outcome) -> None:
        """Nothing to learn."""

    def admit(self, slot: int, prompt_len: int, cached: int, tenant: str, request: str) -> None:
        """Nothing to keep."""

    def reset(self, slot: int) -> None:
        """Nothing to forget."""
