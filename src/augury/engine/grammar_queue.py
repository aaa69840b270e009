"""Which grammar is compiled next: clients take turns, and a full queue drops a job of the longest line."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Generic, TypeVar

Job = TypeVar("Job")


class FairQueue(Generic[Job]):
    """A bounded queue with a line for each client."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._lines: OrderedDict[str, deque[Job]] = OrderedDict()

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    def push(self, client: str, job: Job) -> Job | None:
        """Queue a job; a full queue drops and returns the newest job of the client with the longest line."""
        self._lines.setdefault(client, deque()).append(job)
        if len(self) <= self._size:
            return None
        longest = max(self._lines, key=lambda name: (len(self._lines[name]), name == client))
        return self._taken(longest, len(self._lines[longest]) - 1)

    def push_front(self, client: str, job: Job) -> None:
        """Put back a job that lost its turn through no fault of its own."""
        self._lines.setdefault(client, deque()).appendleft(job)
        self._lines.move_to_end(client, last=False)

    def pop(self, fits: Callable[[Job], bool]) -> Job | None:
        """Take the first job that fits now, of the client whose turn it is or the next that has one; ends its turn."""
        for client, line in self._lines.items():
            place = next((i for i, job in enumerate(line) if fits(job)), None)
            if place is not None:
                self._lines.move_to_end(client)
                return self._taken(client, place)
        return None

    def take(self, which: Callable[[Job], bool]) -> list[Job]:
        """Remove and return the jobs that `which` selects."""
        found = [job for line in self._lines.values() for job in line if which(job)]
        for client, line in list(self._lines.items()):
            self._lines[client] = deque(job for job in line if not which(job))
            if not self._lines[client]:
                del self._lines[client]
        return found

    def _taken(self, client: str, place: int) -> Job:
        line = self._lines[client]
        job = line[place]
        del line[place]
        if not line:
            del self._lines[client]
        return job
