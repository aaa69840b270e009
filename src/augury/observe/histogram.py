"""A histogram whose `observe` never raises."""

from __future__ import annotations

import logging
import math
from typing import Any

import prometheus_client

logger = logging.getLogger("augury")


class Histogram(prometheus_client.Histogram):
    """Prometheus's histogram, except that values that are not finite are ignored: a metric must not fail a request."""

    def observe(self, amount: Any, exemplar: dict[str, str] | None = None) -> None:
        """Count one value; never raises."""
        try:
            number = float(amount)  # an integer may be too large for a float
            if math.isfinite(number):  # one infinity would make the sum useless
                super().observe(number, exemplar)
        except Exception as error:
            logger.warning("%s: a value was left out (%s).", self._name, error)
