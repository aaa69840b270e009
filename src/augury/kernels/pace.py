"""Whether several threads together are quicker than one, where others may want their cores.

Threads that meet ten times a layer wait whenever one of them has lost its core to another process: beside three busy
ones a layer took thirty times as long as on one thread. So what threads take is compared with what one takes, and where
they lose, one works alone for a while. Results are the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field

Kind = tuple[int, int, int]

FEW = 8  # rows of which each number is a kind of its own
MOST_LOST = 0.03  # seconds; a core that is lost for one slice of the scheduler does not count
ALONE = 1.0  # seconds, until threads are tried again
PROBE = 500  # calls on several threads, of which one is made alone to compare with
SMOOTH = 8  # calls over which that is averaged


def kind_of(rows: int, keys: int, weight: int) -> Kind:
    """Calls that take about as long a row; `weight` tells layers apart."""
    return rows if rows <= FEW else FEW + rows.bit_length(), keys.bit_length(), weight


@dataclass(slots=True)
class ThreadTimings:
    """What a call of each kind takes alone, and what threads have lost against that lately."""

    lost: float = 0.0  # seconds
    alone_until: float = 0.0
    _alone: dict[Kind, float] = field(default_factory=dict)  # seconds a row
    _calls: int = 0

    def threads(self, kind: Kind, most: int, now: float) -> int:
        """How many threads to begin with."""
        self._calls += 1
        alone = now < self.alone_until or kind not in self._alone or self._calls % PROBE == 0
        return 1 if alone else most

    def took(self, kind: Kind, rows: int, threads: int, seconds: float, now: float) -> None:
        """Take in what a call took."""
        alone = self._alone.get(kind, seconds / rows)
        if threads > 1:
            self.lost = max(0.0, self.lost + seconds - alone * rows)
            if self.lost > MOST_LOST:
                self.lost, self.alone_until = 0.0, now + ALONE
        else:  # believed at once where it is far less than thought: a first call may have compiled its code
            self._alone[kind] = min(2 * seconds / rows, alone + (seconds / rows - alone) / SMOOTH)
