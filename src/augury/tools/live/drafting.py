"""Acceptance over a stretch of time: rate, length, positions, their confidence, and the shape of the curve."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

Z = 1.96  # standard deviations of a 95% interval
MANY = 20  # drafts; with fewer, the figures mean nothing
WORTH_DRAFTING = 0.4  # a position accepted less often costs more than it brings
FALL = 0.5  # a position that keeps less than this of the one before it is a cliff
ENOUGH_AT = 30  # acceptances before a cliff that distinguish it from chance


@dataclass(frozen=True, slots=True)
class Drafting:
    """Counts of one stretch; a rate is over drafted tokens, a length includes the target's own token."""

    drafts: float = 0.0
    drafted: float = 0.0
    accepted: float = 0.0
    accepted_at: tuple[float, ...] = ()
    drafted_at: tuple[float, ...] = ()

    def __add__(self, other: Drafting) -> Drafting:
        """The sum of two engines' or two stretches' counts."""
        return self._with(other, 1)

    def __sub__(self, other: Drafting) -> Drafting:
        """The counts since an earlier reading."""
        return self._with(other, -1)

    def _with(self, other: Drafting, sign: int) -> Drafting:
        columns = ((self.accepted_at, other.accepted_at), (self.drafted_at, other.drafted_at))
        return Drafting(
            self.drafts + sign * other.drafts,
            self.drafted + sign * other.drafted,
            self.accepted + sign * other.accepted,
            *(tuple(max(0.0, a + sign * b) for a, b in zip_longest(*pair, fillvalue=0.0)) for pair in columns),
        )

    @property
    def rate(self) -> float | None:
        """Accepted over drafted tokens."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def length(self) -> float | None:
        """Tokens per step that had a draft, the target's own included."""
        return 1 + self.accepted / self.drafts if self.drafts else None

    @property
    def per_draft(self) -> float | None:
        """Tokens per draft."""
        return self.drafted / self.drafts if self.drafts else None

    @property
    def marginal(self) -> list[float]:
        """The acceptance rate by position over all drafts, which is how vLLM divides."""
        return [count / self.drafts for count in self.accepted_at] if self.drafts else []

    @property
    def fair(self) -> list[float] | None:
        """The acceptance rate by position over the drafts that reached it; None if the server does not count those."""
        if not self.drafted_at or len(self.drafted_at) != len(self.accepted_at):
            return None
        pairs = zip(self.accepted_at, self.drafted_at, strict=True)
        return [accepted / drafted if drafted else 0.0 for accepted, drafted in pairs]

    @property
    def varies(self) -> bool | None:
        """Whether drafts differ in length, so that vLLM's rates at late positions look worse than they are."""
        if self.per_draft is None or not self.accepted_at:
            return None
        return self.per_draft < len(self.accepted_at) - 0.05

    @property
    def curve(self) -> list[float] | None:
        """The rates by position that can be judged; None if short drafts are indistinguishable from rejected ones."""
        if self.fair is not None:
            return self.fair
        return None if self.varies else self.marginal or None

    @property
    def first(self) -> float | None:
        """The share of drafts whose first token was accepted."""
        return self.marginal[0] if self.marginal else None

    def cliff(self, rates: list[float] | None) -> int | None:
        """The index at which rates fall by half or more; 0 if there is no cliff, None if there are no rates."""
        if not rates:
            return None
        for position in range(1, len(rates)):
            if self.accepted_at[position - 1] < ENOUGH_AT:
                return 0
            if rates[position] <= FALL * rates[position - 1]:
                return position
        return 0

    @property
    def useful(self) -> int | None:
        """How many positions, from the first, are accepted often enough to be worth drafting."""
        if self.curve is None:
            return None
        return next((n for n, rate in enumerate(self.curve) if rate < WORTH_DRAFTING), len(self.curve))

    @property
    def rate_interval(self) -> tuple[float, float] | None:
        """Wilson's interval with fewer trials than tokens, because the tokens of one draft are not independent."""
        if self.rate is None:
            return None
        return wilson(self.rate, self.drafted / max(1.0, self._clustering()))

    @property
    def length_interval(self) -> tuple[float, float] | None:
        """An interval from the variance of accepted tokens per draft, which is exact given counts by position."""
        if self.length is None:
            return None
        half = Z * math.sqrt(self.variance / self.drafts)
        return max(1.0, self.length - half), self.length + half

    @property
    def variance(self) -> float:
        """The variance of accepted tokens per draft; without counts by position, drafts count as all or nothing."""
        mean = self.accepted / self.drafts
        if self.accepted_at:
            square = sum((2 * n + 1) * share for n, share in enumerate(self.marginal))
            return max(0.0, square - mean * mean)
        return mean * max(0.0, (self.per_draft or 0.0) - mean)

    def _clustering(self) -> float:
        """The design effect: the variance relative to that of independent tokens."""
        assert self.rate is not None and self.per_draft is not None
        alone = self.per_draft * self.rate * (1 - self.rate)
        return self.variance / alone if alone > 0 else self.per_draft  # each draft counts as one trial

    def record(self) -> dict[str, Any]:
        """The counts and figures as JSON."""
        return {
            "drafts": self.drafts,
            "drafted_tokens": self.drafted,
            "accepted_tokens": self.accepted,
            "acceptance_rate": self.rate,
            "acceptance_rate_interval": self.rate_interval,
            "acceptance_length": self.length,
            "acceptance_length_interval": self.length_interval,
            "tokens_per_draft": self.per_draft,
            "per_position_over_all_drafts": self.marginal,
            "per_position_over_drafts_that_reached_it": self.fair,
        }


def wilson(rate: float, trials: float) -> tuple[float, float]:
    """Wilson's score interval of a proportion."""
    if trials <= 0:
        return 0.0, 1.0
    rate = min(1.0, max(0.0, rate))
    shrink = 1 + Z * Z / trials
    middle = (rate + Z * Z / (2 * trials)) / shrink
    half = Z * math.sqrt(rate * (1 - rate) / trials + Z * Z / (4 * trials * trials)) / shrink
    return max(0.0, middle - half), min(1.0, middle + half)
