"""How much faster one of two runs was, and how sure that is, from the same prompts timed under both."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

GRID = 4001


class Interval(NamedTuple):
    """A figure with what it may be."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        """As people read it."""
        return f"{self.value:.2f} ({self.low:.2f}-{self.high:.2f})"


def ratio(over: Sequence[float], under: Sequence[float], confidence: float) -> Interval:
    """The ratio of two sums of paired times, with Student's interval of its linearised error.

    A sum weighs prompts as the clock does: what is wanted is the time of the whole traffic, not a typical prompt's.
    """
    a, b = np.asarray(over, float), np.asarray(under, float)
    value, pairs = float(a.sum() / b.sum()), len(a)
    if pairs < 2:
        return Interval(value, 0.0, math.inf)
    errors = a - value * b
    spread = math.sqrt(pairs / (pairs - 1) * float((errors**2).sum())) / float(b.sum())
    reach = student(1 - (1 - confidence) / 2, pairs - 1) * spread
    return Interval(value, max(0.0, value - reach), value + reach)


def student(share: float, freedom: int) -> float:
    """The quantile of Student's law, for a share from a half up.

    With t = sqrt(freedom) tan(angle) its density becomes a power of a cosine, which is summed up and looked up in.
    """
    if freedom < 1 or not 0.5 <= share < 1:
        raise ValueError(f"student({share}, {freedom})")
    angles = np.pi / 2 * (1 - (1 - np.linspace(0, 1, GRID)) ** 4)  # close together at the end, where the tail lies
    heights = np.cos(angles) ** (freedom - 1)
    below = np.concatenate([[0.0], np.cumsum(np.diff(angles) * (heights[1:] + heights[:-1]) / 2)])
    left = (1 - below / below[-1]) / 2  # what lies above each angle
    angle = np.interp(-(1 - share), -left, angles)
    return math.sqrt(freedom) * math.tan(float(angle))
