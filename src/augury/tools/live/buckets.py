"""Prometheus histograms: sums over engines, differences over time, means and quantiles."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass

from augury.tools.live.scrape import Series


@dataclass(frozen=True, slots=True)
class Buckets:
    """Cumulative counts up to each bound; the last bound is infinite."""

    counts: dict[float, float]
    total: float  # sum of the observed values; nan if it is missing

    @property
    def count(self) -> float:
        """The number of observed values."""
        return max(self.counts.values(), default=0.0)

    @property
    def mean(self) -> float | None:
        """The mean of the observed values; None if there are none or their sum is missing."""
        return self.total / self.count if self.count and math.isfinite(self.total) else None

    def minus(self, before: Buckets) -> Buckets:
        """The observations since an earlier reading."""
        left = {bound: count - before.counts.get(bound, 0.0) for bound, count in self.counts.items()}
        return Buckets(left, self.total - before.total)

    def at_most(self, share: float) -> float | None:
        """The lowest bound that at least this share of the values lies under; it may be infinite."""
        wanted = share * self.count
        return next((bound for bound, count in sorted(self.counts.items()) if count >= wanted), None)

    def quantile(self, share: float) -> float | None:
        """A quantile, interpolated linearly inside a bucket as in Prometheus, and at most the last finite bound."""
        wanted, below, low = share * self.count, 0.0, 0.0
        if not self.count:
            return None
        for bound, count in sorted(self.counts.items()):
            if count >= wanted and count > below:
                return low if math.isinf(bound) else low + (bound - low) * (wanted - below) / (count - below)
            below, low = max(below, count), low if math.isinf(bound) else bound
        return low


def gather(buckets: Series, sums: Series) -> Buckets | None:
    """One histogram summed over the engines of one model; None if there are no samples."""
    counts: dict[float, float] = defaultdict(float)
    for labels, value in buckets:
        try:
            bound = float(labels.get("le", "nan"))
        except ValueError:
            continue
        if not math.isnan(bound) and math.isfinite(value):
            counts[bound] += value
    told = [value for _, value in sums if math.isfinite(value)]
    return Buckets(dict(counts), sum(told) if told else math.nan) if counts else None
