"""A grammar's process as the engine sees it, and those who wait for one."""

from __future__ import annotations

import itertools
import time
from copy import copy
from dataclasses import dataclass, field
from typing import Any

from augury.engine.grammar_source import GrammarSource
from augury.engine.grammar_wire import Link

OWN_BYTES = 2 << 20  # of a process beyond what its grammar needs


class Busy(Exception):
    """No fault of the request: it may be asked again in a moment."""


class GrammarChild:
    """The engine's handle on one grammar's process."""

    def __init__(self, source: GrammarSource, number: int, link: Link) -> None:
        self.source, self.number, self.link = source, number, link
        self.bytes, self.mask, self.places = OWN_BYTES, b"", itertools.count(1)
        self.error: str | None = None
        self.live = 0  # requests that have a place in it
        self.promised = 0.0  # until when it is not idle, because those who asked for it have not come yet
        self._copies: list[tuple[int, int, bool]] = []
        self._dropped: list[int] = []

    def copy(self, old: int, bare: bool) -> int:
        """A new place where the old one is; the process hears of it with its next message."""
        new = next(self.places)
        self.live += 1
        self._copies.append((old, new, bare))
        return new

    def drop(self, place: int) -> None:
        """The process has gone."""
        self.live -= 1
        self._dropped.append(place)

    def send(self, **message: Any) -> None:
        """Send a message, and what waits to go with it."""
        copies, self._copies = self._copies, []
        dropped, self._dropped = self._dropped, []
        self.link.send({**message, "copy": copies, "drop": dropped})

    def measure(self, grown: int) -> None:
        """Note how much memory it says it holds."""
        self.bytes = OWN_BYTES + grown


@dataclass(eq=False)
class Ticket:
    """One request's turn: in the end a process or an error."""

    result: GrammarChild | Exception | None = None

    @property
    def done(self) -> bool:
        """Whether the compilation has ended."""
        return self.result is not None

    def process(self) -> GrammarChild:
        """What it was waiting for, or the error."""
        if isinstance(self.result, GrammarChild):
            return self.result
        assert self.result is not None
        raise copy(self.result)  # raised itself, it would keep the frames of all who wait for the same source


@dataclass(eq=False)
class GrammarJob:
    """A source on its way to its process, and those who wait for it."""

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
