"""Speed ratios with confidence intervals, from the same prompts timed under two configurations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

GRID = 4001


class Interval(NamedTuple):
    """A figure with its confidence interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        """The value with its bounds in parentheses."""
        return f"{self.value:.2f} ({self.low:.2f}-{self.high:.2f})"


def ratio(over: Sequence[float], under: Sequence[float], confidence: float) -> Interval:
    """The ratio of two sums of paired times, with a Student's t interval of its linearised error.

    Sums weigh prompts by their time, because what matters is the time of the whole traffic, not of a typical prompt.
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
    """The quantile of Student's t distribution, for a share from 0.5 up.

    With t = sqrt(freedom) tan(angle) the density is a power of a cosine, which is integrated numerically and inverted.
    """
    if freedom < 1 or not 0.5 <= share < 1:
        raise ValueError(f"student({share}, {freedom})")
    angles = np.pi / 2 * (1 - (1 - np.linspace(0, 1, GRID)) ** 4)  # dense at the end, in the tail
    heights = np.cos(angles) ** (freedom - 1)
    below = np.concatenate([[0.0], np.cumsum(np.diff(angles) * (heights[1:] + heights[:-1]) / 2)])
    left = (1 - below / below[-1]) / 2  # probability above each angle
    angle = np.interp(-(1 - share), -left, angles)
    return math.sqrt(freedom) * math.tan(float(angle))
