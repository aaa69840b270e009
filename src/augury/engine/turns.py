"""Which request gets the next slot: of the waiting clients, that with the fewest running requests; of its jobs, that
with the fewest; of a job's requests, the oldest. So no client waits for all that another has queued, and a client that
holds many slots gives one to a client that holds few.

Of those with equally many, the one that has had as many for longest goes first: a client that waits goes before one
whose request has just ended, and no request waits for ever. No clock is read, so the order is deterministic.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator

from augury.engine.request import Request

LEVELS = 2  # of Request.client: a key, and an HTTP request
SHARE = 2  # a slot is given up only by one that holds this many times what the new one would then hold


def _arrival(request: Request) -> int:
    return request.arrival


class JobQueue:
    """The waiting requests of one job, oldest first, and the number that run."""

    def __init__(self) -> None:
        self.running = 0
        self.since = 0  # when `running` last changed, counted in such changes of all lines at this level
        self._waiting: list[Request] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._waiting)

    @property
    def first(self) -> Request:
        """The request that goes next."""
        return self._waiting[0]

    def add(self, request: Request) -> None:
        """Queue a request by its arrival: it may come late, because its grammar took a while to compile."""
        insort(self._waiting, request, key=_arrival)

    def remove(self, request: Request) -> None:
        """Remove a request if it waits here, by bisection: thousands may wait, and all may be removed at once."""
        place = bisect_left(self._waiting, request.arrival, key=_arrival)
        if place < len(self._waiting) and self._waiting[place] is request:
            del self._waiting[place]

    def count(self, request: Request, more: int) -> None:
        """Note that a request has got a slot (1) or left it (-1)."""
        self.running += more

    def holder(self, request: Request) -> tuple[str, ...]:
        """Within a job no request makes room for another: order is by arrival."""
        return ()


class Turns:
    """All waiting requests, in one line per name at this level, each with the next level inside."""

    def __init__(self, level: int = 0) -> None:
        self.running = self.since = 0
        self._level = level
        self._waiting = 0
        self._lines: dict[str, Turns | JobQueue] = {}  # those with anything waiting or running
        self._order: list[tuple[int, int, str]] = []  # those with anything waiting: (running, since, name)
        self._changes = 0

    def __len__(self) -> int:
        return self._waiting

    def __iter__(self) -> Iterator[Request]:
        return (request for line in self._lines.values() for request in line)

    @property
    def first(self) -> Request:
        """The request that goes next."""
        return self._lines[self._order[0][2]].first

    def add(self, request: Request) -> None:
        """Queue a request."""
        self._change(request, lambda line: line.add(request))

    def remove(self, request: Request) -> None:
        """Remove a request, if it waits."""
        self._change(request, lambda line: line.remove(request))

    def count(self, request: Request, more: int) -> None:
        """Note that a request has got a slot (1) or left it (-1)."""
        self.running += more
        self._change(request, lambda line: line.count(request, more))

    def holder(self, request: Request) -> tuple[str, ...]:
        """The client, or the client and the job, that should give up a slot for a request that waits; empty if none."""
        own = request.client[self._level]
        largest = max(self._lines, key=lambda name: self._lines[name].running)
        if self._lines[largest].running >= SHARE * (self._lines[own].running + 1):
            return (largest,)
        inner = self._lines[own].holder(request)
        return (own, *inner) if inner else ()

    def _change(self, request: Request, act: Callable[[Turns | JobQueue], None]) -> None:
        """Apply `act` to a request's line, then put the line back in order."""
        name = request.client[self._level]
        line = self._lines.get(name)
        waited, ran = (0, -1) if line is None else (len(line), line.running)
        if line is None:
            line = self._lines[name] = Turns(self._level + 1) if self._level + 1 < LEVELS else JobQueue()
        if waited:
            del self._order[bisect_left(self._order, (ran, line.since, name))]
        act(line)
        if line.running != ran:
            self._changes += 1
            line.since = self._changes
        self._waiting += len(line) - waited
        if len(line):
            insort(self._order, (line.running, line.since, name))
        elif not line.running:
            del self._lines[name]
