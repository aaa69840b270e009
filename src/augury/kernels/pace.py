"""Whether several threads together are quicker than one, where others may want their cores.

Threads that meet ten times a layer wait whenever one of them has lost its core to another process: beside three busy
ones a layer took forty times as long as on one thread. So time lost is counted against time won, and where threads
have cost more than they gave, one works alone for a while.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

MOST_LOST = 0.03  # seconds; a core that is lost for one slice of the scheduler does not count
ALONE = 1.0  # seconds, until threads are tried again


@dataclass(slots=True)
class Pace:
    """What calls of each size take on several threads, and what that has cost lately."""

    lost: float = 0.0  # seconds
    alone_until: float = 0.0
    _best: dict[Hashable, float] = field(default_factory=dict)

    def threads(self, most: int, now: float) -> int:
        """How many threads to begin with."""
        return 1 if now < self.alone_until else most

    def took(self, size: Hashable, threads: int, seconds: float, now: float) -> None:
        """Take in what a call on several threads took: one alone never takes longer than as many times the best."""
        best = self._best[size] = min(seconds, self._best.get(size, seconds))
        self.lost = max(0.0, self.lost + seconds - threads * best)
        if self.lost > MOST_LOST:
            self.lost, self.alone_until = 0.0, now + ALONE
