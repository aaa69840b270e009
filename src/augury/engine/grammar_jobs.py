"""A grammar's process as the engine sees it, and the requests that wait for one."""

from __future__ import annotations

import itertools
import time
from copy import copy
from dataclasses import dataclass, field
from typing import Any

from augury.engine.grammar_source import GrammarSource
from augury.engine.grammar_wire import Link

OWN_BYTES = 2 << 20  # memory of a process besides what its grammar needs


class Busy(Exception):
    """A refusal through no fault of the request, which may be sent again in a moment."""


class GrammarChild:
    """The engine's handle on one grammar's process."""

    def __init__(self, source: GrammarSource, number: int, link: Link) -> None:
        self.source, self.number, self.link = source, number, link
        self.bytes, self.mask, self.places = OWN_BYTES, b"", itertools.count(1)
        self.error: str | None = None
        self.live = 0  # requests that have a place in it
        self.promised = 0.0  # until when it counts as in use, as requests that asked for it have not taken places yet
        self._copies: list[tuple[int, int, bool]] = []
        self._dropped: list[int] = []

    def copy(self, old: int, bare: bool) -> int:
        """Copy a place and return the number of the new one; the process is told with the next message."""
        new = next(self.places)
        self.live += 1
        self._copies.append((old, new, bare))
        return new

    def drop(self, place: int) -> None:
        """Give up a place; the process is told with the next message."""
        self.live -= 1
        self._dropped.append(place)

    def send(self, **message: Any) -> None:
        """Send a message, with the pending copies and drops of places."""
        copies, self._copies = self._copies, []
        dropped, self._dropped = self._dropped, []
        self.link.send({**message, "copy": copies, "drop": dropped})

    def measure(self, grown: int) -> None:
        """Note how far its memory has grown, as it reports."""
        self.bytes = OWN_BYTES + grown


@dataclass(eq=False)
class Ticket:
    """One request's wait for a compilation, which results in a process or an error."""

    result: GrammarChild | Exception | None = None

    @property
    def done(self) -> bool:
        """Whether the compilation has ended."""
        return self.result is not None

    def process(self) -> GrammarChild:
        """The process it was waiting for; raises the error if there is one instead."""
        if isinstance(self.result, GrammarChild):
            return self.result
        assert self.result is not None
        raise copy(self.result)  # the original would keep the frames of all that wait for the same source


@dataclass(eq=False)
class GrammarJob:
    """A source that is queued or being compiled, and the tickets that wait for it."""

    source: GrammarSource
    key: str
    client: str
    tickets: list[Ticket]
    queued: float = field(default_factory=time.monotonic)
    begun: float = 0.0
    tries: int = 0
    process: GrammarChild | None = None

    def end(self, result: GrammarChild | Exception) -> None:
        """Pass the result to every waiting request."""
        for ticket in self.tickets:
            ticket.result = result
