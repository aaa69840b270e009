"""Whether several threads together are faster than one, where other processes may want their cores.

Threads that meet ten times a layer wait whenever one of them has lost its core to another process: with three busy
ones a layer took thirty times as long as on one thread. So the time of several threads is compared with that of one,
and where they lose, one works alone for a while. Results are the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field

Kind = tuple[int, int, int]

FEW = 8  # up to so many rows, each number of rows is a kind of its own
MOST_LOST = 0.03  # seconds; a core that is lost for one slice of the scheduler does not count
ALONE = 1.0  # seconds, until threads are tried again
PROBE = 500  # layers on several threads, after which one is run on one thread to compare with
SMOOTH = 8  # times over which that is averaged
TRIED = 2  # layers in one call at first, and after threads have lost: no time is taken within a call


def kind_of(rows: int, keys: int, weight: int) -> Kind:
    """A key for layers that take about the same time per row; `weight` tells models apart."""
    return rows if rows <= FEW else FEW + rows.bit_length(), keys.bit_length(), weight


@dataclass(slots=True)
class ThreadTimings:
    """How long a layer of each kind takes on one thread, and how much several threads have lost to that lately."""

    lost: float = 0.0  # seconds
    alone_until: float = 0.0
    together: int = TRIED  # layers that threads may run in one call; doubled with every call that went well
    _alone: dict[Kind, float] = field(default_factory=dict)  # seconds a row
    _until_probe: int = PROBE

    def begin(self, kind: Kind, rows: int, most: int, layers: int, now: float) -> tuple[int, int]:
        """How many threads to begin these layers with, and how many layers to run before asking again."""
        if now < self.alone_until:
            return 1, layers
        alone = self._alone.get(kind)
        if alone is None or self._until_probe <= 0:
            self._until_probe = PROBE
            return 1, 1
        count = int(min(layers, self.together, max(1.0, MOST_LOST / max(alone * rows, 1e-9))))
        self._until_probe -= count
        return most, count

    def took(self, kind: Kind, rows: int, threads: int, layers: int, seconds: float, now: float) -> None:
        """Record how long a call took."""
        each = seconds / layers / rows
        alone = self._alone.get(kind, each)
        if threads == 1:  # believed at once where it is far less than thought: a first call may have compiled its code
            self._alone[kind] = min(2 * each, alone + (each - alone) / SMOOTH)
            return
        self.lost = max(0.0, self.lost + seconds - alone * rows * layers)
        self.together = min(2 * self.together, PROBE)
        if self.lost > MOST_LOST:
            self.lost, self.alone_until, self.together = 0.0, now + ALONE, TRIED
