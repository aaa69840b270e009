"""The measured speedup: how fast this engine is with its drafts, against itself without them.

Now and then one pass runs without drafts for any request. It is paired with the passes since the last such one: tokens
a second with drafts, the drafter's time included, over tokens a second without. Both sides are summed over pairs before
they are compared: now and then a pass takes many times as long, and a mean of single ratios would count that against
the drafts alone, whose passes are many to a pair. A confidence interval over the last pairs says how far the ratio can
be trusted. There is one for every class of load, because it is load that turns a gain into a loss.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from augury.observe.steps import Step

KEPT, LEAST = 64, 8  # pairs that an estimate is made from, at most and at least
SIGNS = np.array([1, -1, -1, 1])  # of drafted tokens and seconds, and plain ones, in the ratio's logarithm


class PairedSpeedup(NamedTuple):
    """Speed as a multiple of plain decoding's, with a 95 % confidence interval."""

    ratio: float
    low: float
    high: float
    pairs: int


@dataclass(slots=True)
class LoadClass:
    """Measurements of one class of load."""

    pairs: deque[tuple[float, ...]] = field(default_factory=lambda: deque(maxlen=KEPT))
    tokens: int = 0  # since the last plain pass
    seconds: float = 0.0
    found: PairedSpeedup | None = None

    def add(self, seconds: float, tokens: int) -> None:
        """Add a plain pass, which ends a pair: the ratio of the sums, and its interval on a logarithmic scale."""
        self.pairs.append((self.tokens, self.seconds, tokens, seconds))
        n = len(self.pairs)
        if n < LEAST:
            return
        table = np.array(self.pairs)
        drafted, spent, plain, seconds = table.sum(0)
        ratio = float(drafted / spent * seconds / plain)
        pulls = table / table.sum(0) @ SIGNS  # how far each pair moves the ratio's logarithm: the delta method
        spread = math.sqrt(float((pulls**2).sum()) * n / (n - 1))
        reach = math.exp((1.96 + 2.4 / n) * spread)  # Student's factor, closely enough from 8 on
        self.found = PairedSpeedup(ratio, ratio / reach, ratio * reach, n)


class Paired:
    """Pairs of drafted and plain passes, by class of load."""

    def __init__(self) -> None:
        self._classes: dict[int, LoadClass] = {}
        self.last = 0  # the class of the last step

    def enter(self, step: Step, drafting: float | None = None) -> None:
        """Add a pass without prompt tokens, of which `drafting` seconds were the drafter's; a sample ends a pair."""
        if not step.decoding_only or not step.requests or step.seconds <= 0:
            return
        self.last = load_class(step.requests)
        load = self._classes.setdefault(self.last, LoadClass())
        if not step.sample:
            load.tokens += step.generation_tokens
            load.seconds += step.seconds
        elif load.tokens and not step.drafts:
            own = step.seconds - (drafting or 0.0)  # on a crowded machine the clocks may leave nothing
            if own > 0 and step.generation_tokens > 0:
                load.add(own, step.generation_tokens)
            load.tokens, load.seconds = 0, 0.0

    def estimate(self, requests: int | None = None) -> PairedSpeedup | None:
        """The speedup at this many requests, or at the load of the last step; None while it is not known."""
        load = self._classes.get(self.last if requests is None else load_class(requests))
        return load.found if load else None

    def forget(self, requests: int) -> None:
        """Drop the measurements at a load, because something has changed there."""
        self._classes.pop(load_class(requests), None)


def load_class(requests: int) -> int:
    """The class of load: 1, 2, 3 to 4, 5 to 8, ... requests."""
    return (requests - 1).bit_length()
