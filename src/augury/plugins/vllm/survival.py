"""How far a request's drafts have been right, and how much it should draft next."""

from __future__ import annotations

from itertools import accumulate
from operator import mul

FADES = 0.9  # weight of the past when the outcome of a draft becomes known
PROBE_EVERY = 16  # steps after which a request that drafts nothing drafts one token, to learn whether its text changed


class Survival:
    """The chance that each position of a request's draft is right if all before it were."""

    def __init__(self, most: int) -> None:
        self.odds = [1.0] * most
        self.silent = 0

    def see(self, drafted: int, accepted: int) -> None:
        """Record the outcome of a draft; nothing is learnt of positions after the first wrong one."""
        for i in range(min(drafted, accepted + 1, len(self.odds))):
            self.odds[i] = FADES * self.odds[i] + (1 - FADES) * (i < accepted)

    def worth(self, cost: float) -> int:
        """How many tokens to draft: those whose chance of being accepted is at least the cost of a row."""
        reached = accumulate(self.odds, mul)
        count = next((i for i, chance in enumerate(reached) if chance < cost), len(self.odds))
        self.silent = 0 if count else self.silent + 1
        return 1 if self.silent and self.silent % PROBE_EVERY == 0 else count
