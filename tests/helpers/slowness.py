"""How much slower this machine is than the one that limits of time were written for."""

from __future__ import annotations

import time

USUAL = 0.04  # seconds that the count below took there, on a quiet core
TRIES, COUNTED = 3, 1_000_000


def times_slower() -> float:
    """At least 1: a limit of seconds is multiplied by it, so that it stays as strict where it was written."""
    taken = []
    for _ in range(TRIES):
        begun = time.perf_counter()
        sum(range(COUNTED))
        sum(i & 1 for i in range(COUNTED // 4))
        taken.append(time.perf_counter() - begun)
    return max(1.0, sorted(taken)[1] / USUAL)
