"""A histogram that cannot fail its caller."""

from __future__ import annotations

import logging
import math
from typing import Any

import prometheus_client

logger = logging.getLogger("augury")


class Histogram(prometheus_client.Histogram):
    """Prometheus's histogram, except that what is no finite number is left out: a figure is not worth an answer."""

    def observe(self, amount: Any, exemplar: dict[str, str] | None = None) -> None:
        """Count one value; never raises."""
        try:
            number = float(amount)  # an integer may be too large for it
            if math.isfinite(number):  # one infinity would make the sum useless for good
                super().observe(number, exemplar)
        except Exception as error:
            logger.warning("%s: a value was left out (%s).", self._name, error)
