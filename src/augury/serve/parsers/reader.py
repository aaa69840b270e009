"""The incremental part that all parsers share: text that comes in pieces, read as if all of it were there.

A format is a generator that reads an answer from a `Reader`, from beginning to end, and yields wherever it needs more
text than has come. Each of the reader's steps decides by the text alone: it emits what no later text can change, and
keeps at most the beginning of a mark. So the events of a text never depend on how it was split, by tokens or by drafts
of any length.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Sequence
from functools import cache
from typing import Any, TypeVar

from augury.serve.parsers.events import ARGUMENTS, CALL, CONTENT, REASONING, Event

Result = TypeVar("Result")
Steps = Generator[None, None, Result]  # yields where it waits for more text
Sink = Callable[[str], None]
SPACE = re.compile(r"\s*")
LONGEST = 1 << 16  # characters that are kept at most until it is known what they are; beyond that they are content


class Marks:
    """Texts to look for; none of them contains another, so the first that is complete is the one."""

    def __init__(self, *marks: str) -> None:
        assert not any(one != other and one in other for one in marks for other in marks), marks
        self.search = re.compile("|".join(map(re.escape, marks))).search
        self._heads = frozenset(mark[:size] for mark in marks for size in range(1, len(mark)))
        self._longest = max(map(len, marks)) - 1

    def begun(self, text: str, at: int) -> int:
        """How many characters at the end of the text may be the beginning of a mark."""
        for size in range(min(self._longest, len(text) - at), 0, -1):
            if text[len(text) - size :] in self._heads:
                return size
        return 0


marks = cache(Marks)  # for marks that a table names


class Held:
    """Text that is kept until it proves to be a call or content; its length is limited."""

    def __init__(self, text: str = "") -> None:
        self._pieces, self._size = [text], len(text)

    def add(self, text: str) -> None:
        """Keep more of it."""
        self._pieces.append(text)
        self._size += len(text)

    @property
    def room(self) -> int:
        """Characters that it may still take."""
        return max(0, LONGEST - self._size)

    @property
    def full(self) -> bool:
        """Whether it has reached the limit."""
        return self._size >= LONGEST

    @property
    def text(self) -> str:
        """All of it."""
        return "".join(self._pieces)


def twice(one: Held, other: Held) -> Sink:
    """A sink that adds to both of two kept texts."""

    def add(text: str) -> None:
        one.add(text)
        other.add(text)

    return add


def nowhere(_: str) -> None:
    """A sink for text that is not needed."""


class Reader:
    """A text as it comes, and the events that were found in it."""

    def __init__(self) -> None:
        self.ended = False
        self.events: list[Event] = []
        self._text, self._at = "", 0
        self._white: list[str] = []  # white space that is content unless a call follows
        self._after_call = False

    @property
    def kept(self) -> int:
        """Characters that are kept until it is known what comes after them."""
        return len(self._text) - self._at

    def put(self, text: str) -> None:
        """Take more text."""
        self._text, self._at = self._text[self._at :] + text, 0

    # What is found.

    def content(self, text: str) -> None:
        """Emit a piece of content; white space beside a call is not part of it."""
        if self._after_call:
            text = text.lstrip()
        if text and (said := text.rstrip()):
            self._after_call = False
            self._say(CONTENT, "".join(self._white) + said)
            self._white = []
            text = text[len(said) :]
        if text:
            self._white.append(text)

    def reasoning(self, text: str) -> None:
        """Emit a piece of reasoning."""
        self._say(REASONING, text)

    def plain(self, text: str) -> None:
        """Emit a piece of content as it is, for another parser to look for calls in."""
        self._say(CONTENT, text)

    def call(self, name: str) -> None:
        """Emit the call of a function."""
        self._white, self._after_call = [], True
        self.events.append(Event(CALL, name))

    def arguments(self, text: str) -> None:
        """Emit a piece of the latest call's arguments."""
        self._say(ARGUMENTS, text)

    def close(self) -> None:
        """Emit the white space at the end."""
        self._say(CONTENT, "".join(self._white))
        self._white = []

    def _say(self, kind: str, text: str) -> None:
        if text:
            self.events.append(Event(kind, text))

    # Steps of a format.

    def upto(self, marks: Marks, sink: Sink, held: Held | None = None, take: bool = True) -> Steps[str]:
        """Read up to and including the first of some marks, which is returned; "" if there is none.

        `held` limits how far to look; `take=False` leaves the mark where it is.
        """
        while True:
            found = marks.search(self._text, self._at)
            kept = 0 if found or self.ended else marks.begun(self._text, self._at)
            end = found.start() if found else len(self._text) - kept
            over = held is not None and end - self._at > held.room  # by the text alone, however it is split
            begin, self._at = self._at, self._at + held.room if held is not None and over else end
            sink(self._text[begin : self._at])
            if over or (self.ended and not found):
                return ""
            if found:
                self._at = found.end() if take else found.start()
                return found.group()
            yield

    def run(self, pattern: re.Pattern[str], sink: Sink, held: Held | None = None) -> Steps[None]:
        """Read as many characters as a pattern of the form [...]* takes, and `held` has room for."""
        while True:
            end = len(self._text) if held is None else self._at + held.room
            found = pattern.match(self._text, self._at, end)
            assert found is not None
            self._at = found.end()
            sink(found.group())
            if self._at < len(self._text) or self.ended or (held is not None and held.full):
                return
            yield

    def space(self, sink: Sink = nowhere, held: Held | None = None) -> Steps[None]:
        """Read white space."""
        return (yield from self.run(SPACE, sink, held))

    def rest(self, sink: Sink) -> Steps[None]:
        """Read all that follows."""
        while (yield from self.peek()):
            self._at, begin = len(self._text), self._at
            sink(self._text[begin:])

    def peek(self) -> Steps[str]:
        """The next character, which stays; "" at the end."""
        while self._at == len(self._text) and not self.ended:
            yield
        return self._text[self._at : self._at + 1]

    def take(self, count: int, sink: Sink) -> Steps[str]:
        """Read `count` characters; fewer at the end."""
        while len(self._text) - self._at < count and not self.ended:
            yield
        found = self._text[self._at : self._at + count]
        self._at += len(found)
        sink(found)
        return found

    def literal(self, text: str, sink: Sink = nowhere) -> Steps[bool]:
        """Read this text if it comes next, else nothing; returns whether it did."""
        while not self._text.startswith(text, self._at):
            have = len(self._text) - self._at
            if self.ended or have >= len(text) or self._text[self._at :] != text[:have]:
                return False
            yield
        self._at += len(text)
        sink(text)
        return True


Format = Callable[[Reader], Steps[Any]]


class Parser:
    """Runs a format over one answer."""

    def __init__(self, form: Format) -> None:
        self.reader = Reader()
        self._steps = form(self.reader)
        self._over = False

    def feed(self, text: str) -> list[Event]:
        """Take more of the answer; returns the events that it settles."""
        if text:
            self.reader.put(text)
            self._go_on()
        return self._new()

    def finish(self) -> list[Event]:
        """End the answer; returns the events that were still open."""
        self.reader.ended = True
        self._go_on()
        self.reader.close()
        return self._new()

    def _go_on(self) -> None:
        if not self._over:
            self._over = next(self._steps, self) is self  # a step waits with None

    def _new(self) -> list[Event]:
        found, self.reader.events = self.reader.events, []
        return found


class Chain:
    """Parsers one after another: each reads what the one before it leaves as content."""

    def __init__(self, parsers: Sequence[Parser]) -> None:
        self._parsers = list(parsers)

    @property
    def kept(self) -> int:
        """Characters that are kept until it is known what comes after them, in all readers."""
        return sum(parser.reader.kept for parser in self._parsers)

    def feed(self, text: str) -> list[Event]:
        """Take more of the answer; returns the events that it settles."""
        if len(self._parsers) == 1:  # as nearly always
            return self._parsers[0].feed(text)
        return self._through(self._parsers, [Event(CONTENT, text)] if text else [])

    def finish(self) -> list[Event]:
        """End the answer; returns the events that were still open."""
        found: list[Event] = []
        for number, parser in enumerate(self._parsers):
            found += self._through(self._parsers[number + 1 :], parser.finish())
        return found

    def _through(self, parsers: Sequence[Parser], events: list[Event]) -> list[Event]:
        for parser in parsers:
            events = [
                later for event in events for later in (parser.feed(event.text) if event.kind == CONTENT else [event])
            ]
        return events
