"""How confident a drafter is of its tokens, and whether one more is worth its cost.

A draft token's probability says much about its chance to be accepted: how much is learnt from how tokens of that
probability have fared, greedy and sampled ones apart. A draft ends before the token whose chance to be reached and
accepted is worth less than its row costs the target, and no further token is drafted if it would likely be cut off.

Only what is known before a token is drawn decides whether it is verified: the probability of the likeliest token, not
of the one that was drawn.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from augury.drafters.base import DraftInput
from augury.kernels.arrays import Array, array_of, lasting, with_array

BINS = 16
LEAN = 4.0  # tokens a bin must have seen to count as much as the probability itself
FADES = 0.998  # decay of the records with every pass that verifies drafts
FOLLOWS = 0.02  # weight of the newest draft in the running means, once there are enough
TYPICAL = 0.5  # chance assumed for a token that is not drafted yet, until some have been


class Prices(NamedTuple):
    """Costs, as the number of tokens that must be gained to cover them."""

    row: float = 0.0  # of one more row for the target to verify
    level: float = 0.0  # of one more level for the drafter to run


class Confidence:
    """Decides where chains end while they are drafted, on the host."""

    def __init__(self, slots: int, positions: int) -> None:
        self.prices = Prices()  # set before every pass
        self.rows = self.levels = (1 + positions) / 2  # of a draft, on average
        self._drafts = 0
        self.ran = 0  # passes of the drafter that the last draft took
        self._records = np.zeros((2, 2, BINS))  # greedy or drawn; tried or accepted
        self._ahead = np.full(positions + 1, TYPICAL)
        self._pending = np.zeros((slots, positions), np.int16)  # bins of the newest draft's tokens
        self._judged = np.zeros((slots, positions), np.int16)  # and of the one that a pass has verified meanwhile
        self._moved = np.zeros(slots, bool)
        self._empty: list[int] = []

    def begin(self, inputs: DraftInput, budget: Tensor) -> None:
        """Begin a draft; the pending one has just been verified."""
        from augury.kernels.confidence_numba import open_guesses  # compiled code is loaded where it is used

        self._slots, self._budget, self.ran = array_of(inputs.slots), array_of(budget), 0
        count = len(self._slots)
        self._drawn, self._reached, self._kept = np.empty(count, np.int64), np.ones(count), np.zeros(count, np.int64)
        given = array_of(inputs.nodes), lasting(inputs.sampling.temperature)
        open_guesses(self._slots, *given, self._pending, self._judged, self._moved, self._drawn)

    def note(self, logits: Tensor, i: int) -> bool:
        """Judge token i of every chain by the logits it was picked from; returns whether to draft another."""
        from augury.kernels.confidence_numba import note_guesses

        self.ran = i + 1
        marks = self._pending, self._reached, self._kept, self._ahead, FOLLOWS, self.prices
        lines = array_of(logits.float())
        return bool(note_guesses(lines, i, self._slots, self._budget, self._drawn, self._records, LEAN, *marks))

    def arrays(self) -> tuple[Any, ...]:
        """What note_guesses takes after scores, place, slots and budgets, for compiled code that judges by itself."""
        marks = self._pending, self._reached, self._kept, self._ahead, FOLLOWS, tuple(map(float, self.prices))
        return self._drawn, self._records, LEAN, *marks

    def finish(self, at_once: bool) -> Tensor:
        """End the draft; returns how many tokens of each chain are to be verified, int64 [G]."""
        self.ran = min(self.ran, 1) if at_once else self.ran
        lines = zip(self._slots.tolist(), self._budget.tolist(), self._kept.tolist(), strict=True)
        begun = [(slot, kept) for slot, budget, kept in lines if budget > 0]
        if begun:
            self._empty += [slot for slot, kept in begun if not kept]
            self._drafts += 1
            follows = max(FOLLOWS, 1 / (1 + self._drafts))
            self.rows += follows * (sum(kept for _, kept in begun) / len(begun) - self.rows)
            self.levels += follows * (self.ran - self.levels)
        return with_array(self._kept)

    def take_empty(self) -> list[int]:
        """Slots with a draft of which nothing was kept, since the last call."""
        empty, self._empty = self._empty, []
        return empty

    def judge(self, slots: Array, depths: Array, accepted: Array) -> None:
        """Learn how drafts fared that are still the newest of their slots."""
        from augury.kernels.confidence_numba import enter_guesses

        enter_guesses(slots, depths, accepted, self._pending, self._records, FADES)

    def see(self, slots: Array, depths: Array, accepted: Array) -> None:
        """Learn how the drafts fared that a pass has verified, now that newer ones are there."""
        from augury.kernels.confidence_numba import enter_guesses

        bins = np.where(self._moved[:, None], self._judged, self._pending)
        enter_guesses(slots, depths, accepted, bins, self._records, FADES)
