"""A histogram whose `observe` never raises."""

from __future__ import annotations

import logging
import math
from bisect import bisect_left
from typing import Any

import prometheus_client

logger = logging.getLogger("augury")


class Histogram(prometheus_client.Histogram):
    """Prometheus's histogram, except that values that are not finite are ignored: a metric must not fail a request."""

    def observe(self, amount: Any, exemplar: dict[str, str] | None = None, times: int = 1) -> None:
        """Count a value once, or as often as it was met; never raises."""
        try:
            number = float(amount)  # an integer may be too large for a float
            if not math.isfinite(number):  # one infinity would make the sum useless
                return
            if times == 1:
                super().observe(number, exemplar)
            else:
                self._count(number, times)
        except Exception as error:
            logger.warning("%s: a value was left out (%s).", self._name, error)

    def _count(self, number: float, times: int) -> None:
        """Count a value many times at once: a thousand answers may end together, and one by one would delay all."""
        self._sum.inc(number * times)
        self._buckets[bisect_left(self._upper_bounds, number)].inc(times)
