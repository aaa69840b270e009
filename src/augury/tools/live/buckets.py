"""Histograms of Prometheus: sums over engines, differences over time, means and quantiles."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass

from augury.tools.live.scrape import Series


@dataclass(frozen=True, slots=True)
class Buckets:
    """Cumulative counts up to each bound; the last bound is infinite."""

    counts: dict[float, float]
    total: float  # of the values observed; nan if the sum is missing

    @property
    def count(self) -> float:
        """Values observed."""
        return max(self.counts.values(), default=0.0)

    @property
    def mean(self) -> float | None:
        """The mean of the values observed."""
        return self.total / self.count if self.count and math.isfinite(self.total) else None

    def minus(self, before: Buckets) -> Buckets:
        """What came since."""
        left = {bound: count - before.counts.get(bound, 0.0) for bound, count in self.counts.items()}
        return Buckets(left, self.total - before.total)

    def at_most(self, share: float) -> float | None:
        """The bound that so large a share of the values lies under; infinite beyond the last."""
        wanted = share * self.count
        return next((bound for bound, count in sorted(self.counts.items()) if count >= wanted), None)

    def quantile(self, share: float) -> float | None:
        """By straight lines inside a bucket, as Prometheus does it; beyond the last bound, that bound."""
        wanted, below, low = share * self.count, 0.0, 0.0
        if not self.count:
            return None
        for bound, count in sorted(self.counts.items()):
            if count >= wanted and count > below:
                return low if math.isinf(bound) else low + (bound - low) * (wanted - below) / (count - below)
            below, low = max(below, count), low if math.isinf(bound) else bound
        return low


def gather(buckets: Series, sums: Series) -> Buckets | None:
    """One histogram out of the samples of one model's engines; None where there are none."""
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
