"""One memory budget for the bodies of all connections, so that many unfinished ones cannot exhaust the memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

SMALL = 65_536  # bytes of each body that are not counted, so that large bodies never shut out small ones


class Full(Exception):
    """All bodies together would exceed the budget."""


class Share:
    """One body's share of the budget."""

    def __init__(self, room: Room) -> None:
        self.room, self.held = room, 0

    def grow(self, size: int) -> None:
        """Account for a body that has `size` bytes so far; raises Full if the budget is exceeded."""
        more = max(0, size - SMALL) - self.held
        if self.room.held + more > self.room.most:
            raise Full
        self.room.held += more
        self.held += more


class Room:
    """The budget: `most` bytes, of which `held` are in use."""

    def __init__(self, most: int) -> None:
        self.most, self.held = most, 0

    @contextmanager
    def share(self) -> Iterator[Share]:
        """A body's share, which is returned when the context ends."""
        one = Share(self)
        try:
            yield one
        finally:
            self.held -= one.held
