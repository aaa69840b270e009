"""Acceptance of healthy deployments, at the K they were measured with and at any other; for `check` and `advise`."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

FAULT = 0.8  # share of a band's low end: below that a drafter has a fault, not just a bad day
TINY = 1e-6  # 1.4 - 1 is a little less than 0.4 in binary
Pair = tuple[float, float]
Kind = Literal["chat", "code", "agent", "unknown"]


class Band(NamedTuple):
    """Acceptance rate (accepted over drafted) and tokens per step (with the target's own) of healthy deployments."""

    rate: Pair | None
    length: Pair | None
    where: str
    curve: tuple[float, ...] = ()  # acceptance by position, as vLLM's own example shows it
    tokens: int | None = None  # the K of both figures; None: they are for any
    usual: float | None = None  # the typical length
    kind: Kind = "unknown"  # of the prompts
    source: str = ""

    @property
    def fault_rate(self) -> float | None:
        """The rate under which something is wrong with a drafter that has weights."""
        return FAULT * self.rate[0] if self.rate else None

    def at(self, tokens: float | None) -> Band:
        """The band at another K; at a mean K that is no whole number, what either neighbour allows."""
        if not tokens or not self.tokens or tokens == self.tokens or self.length is None:
            return self
        fewer, more = max(1, math.floor(tokens)), max(1, math.ceil(tokens))
        usual = round(length_for(rate_for(self.usual, self.tokens), fewer), 2) if self.usual else None
        rate, length = self._rate(fewer, more), self._length(fewer, more)
        return self._replace(rate=rate, length=length, tokens=round(tokens), usual=usual)

    def _length(self, fewer: int, more: int) -> Pair:
        assert self.length is not None and self.tokens is not None
        low, high = (rate_for(length, self.tokens) for length in self.length)
        return round(length_for(low, fewer), 2), round(length_for(high, more), 2)

    def _rate(self, fewer: int, more: int) -> Pair | None:
        """The rate at another K: a larger K has more tokens accepted, but a smaller share of them."""
        assert self.length is not None and self.tokens is not None
        if self.rate is None:
            return None
        low, high = (rate_for(length, self.tokens) for length in self.length)
        return outwards((length_for(low, more) - 1) / more, (length_for(high, fewer) - 1) / fewer)


def outwards(low: float, high: float) -> Pair:
    """Two decimals, rounded so that a server right on the edge of a length is not outside by its rate."""
    return math.floor(100 * low + TINY) / 100, math.ceil(100 * high - TINY) / 100


def measured(
    low: float,
    usual: float,
    high: float,
    tokens: int,
    where: str,
    source: str,
    kind: Kind = "unknown",
    curve: tuple[float, ...] = (),
) -> Band:
    """A band from lengths at one K; the rate follows from them."""
    rate = outwards((low - 1) / tokens, (high - 1) / tokens)
    return Band(rate, (low, high), where, curve, tokens, usual, kind, source)


def rate_for(length: float, tokens: int) -> float:
    """The rate p with 1 + p + p^2 + ... + p^K equal to a mean length."""
    if length <= 1:
        return 0.0
    if length >= tokens + 1:
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        if length_for(middle, tokens) < length:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def length_for(rate: float, tokens: int) -> float:
    """The mean length if each position is accepted with this rate, given those before it: 1 + p + ... + p^K."""
    return 1 + sum(rate**i for i in range(1, tokens + 1))
