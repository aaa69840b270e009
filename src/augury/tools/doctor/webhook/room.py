"""Room for bodies: one budget for all connections, so that many unfinished ones cannot exhaust the memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

SMALL = 65_536  # bytes of a body that need no room, so that large ones never shut out small ones


class Full(Exception):
    """All bodies together would take more than they may."""


class Share:
    """What one body takes."""

    def __init__(self, room: Room) -> None:
        self.room, self.held = room, 0

    def grow(self, size: int) -> None:
        """Count a body that has so many bytes by now."""
        more = max(0, size - SMALL) - self.held
        if self.room.held + more > self.room.most:
            raise Full
        self.room.held += more
        self.held += more


class Room:
    """The budget."""

    def __init__(self, most: int) -> None:
        self.most, self.held = most, 0

    @contextmanager
    def share(self) -> Iterator[Share]:
        """A body's share, given back in the end."""
        one = Share(self)
        try:
            yield one
        finally:
            self.held -= one.held
