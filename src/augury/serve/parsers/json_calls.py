"""Calls written as JSON: {"name": ..., "arguments": {...}}, alone or in a list. Arguments go out as they come."""

from __future__ import annotations

import json
import re

from augury.serve.parsers.reader import Held, Reader, Sink, Steps, nowhere, twice
from augury.serve.parsers.typed import encodable

INSIDE = re.compile(r"[ \t\r\n0-9A-Za-z_+\-.,:]*")  # of objects and lists, outside strings
SCALAR = re.compile(r"[0-9A-Za-z_+\-.]*")
UNQUOTED = re.compile(r'[^"\\]*')
ARGUMENTS = ("arguments", "parameters")
LONGEST_NAME = 512


def string(reader: Reader, sink: Sink, held: Held | None = None) -> Steps[bool]:
    """Read a string with its quotes; returns whether it is complete."""
    if not (yield from reader.literal('"', sink)):
        return False
    while held is None or not held.full:
        yield from reader.run(UNQUOTED, sink, held)
        if (yield from reader.literal('"', sink)):
            return True
        if not (yield from reader.take(2, sink)):  # an escaped character
            return False
    return False


def value(reader: Reader, sink: Sink, held: Held | None = None) -> Steps[bool]:
    """Read a value; returns whether it is complete. A character that JSON does not have outside strings ends it."""
    first = yield from reader.peek()
    if first == '"':
        return (yield from string(reader, sink, held))
    if first == "" or first not in "{[":
        yield from reader.run(SCALAR, sink, held)
        return first != "" and SCALAR.match(first).end() > 0  # type: ignore[union-attr]
    depth = 0
    while held is None or not held.full:
        yield from reader.run(INSIDE, sink, held)
        sign = yield from reader.peek()
        if sign == '"':
            if not (yield from string(reader, sink, held)):
                return False
        elif sign and sign in "{}[]":
            yield from reader.take(1, sink)
            depth += 1 if sign in "{[" else -1
            if depth == 0:
                return True
        else:
            return False
    return False


class _Object:
    """What is known of {"name": ..., "arguments": ...} so far."""

    def __init__(self, reader: Reader, held: Held) -> None:
        self.reader, self.held = reader, held
        self.name: str | None = None
        self.early = ""  # arguments before the name
        self.called = False

    def keep(self, text: str) -> None:
        """Hold a text back while it may not be a call."""
        if not self.called:
            self.held.add(text)

    def member(self) -> Steps[bool]:
        """Read `"key": value`; returns whether it was well formed."""
        key = yield from self._text()
        yield from self.reader.space(self.keep, self.held)
        if key is None or not (yield from self.reader.literal(":", self.keep)):
            return False
        yield from self.reader.space(self.keep, self.held)
        if key == "name" and self.name is None:
            self.name = yield from self._text()
            return bool(self.name) and len(self.name or "") <= LONGEST_NAME and encodable(self.name or "")
        if key in ARGUMENTS and not self.called and not self.early:
            return (yield from self._arguments())
        return (yield from value(self.reader, self.keep, self.held))

    def _arguments(self) -> Steps[bool]:
        if self.name is None:
            early = Held()
            whole = yield from value(self.reader, twice(self.held, early), self.held)
            self.early = early.text
            return whole
        self.call()
        return (yield from value(self.reader, self.reader.arguments))

    def call(self) -> None:
        """Emit the call by its name, with the arguments that came before it."""
        self.called = True
        self.reader.call(self.name or "")
        self.reader.arguments(self.early)

    def _text(self) -> Steps[str | None]:
        text = Held()
        if not (yield from string(self.reader, twice(self.held, text), self.held)):
            return None
        try:
            return str(json.loads(text.text, strict=False))
        except ValueError:
            return None


def call_object(reader: Reader, held: Held) -> Steps[bool]:
    """Read one call, its keys in any order; returns whether it is one. If not, `held` has what was read."""
    found = _Object(reader, held)
    if not (yield from reader.literal("{", held.add)):
        return False
    while True:
        yield from reader.space(found.keep, held)
        if not (yield from found.member()):
            return found.called
        yield from reader.space(found.keep, held)
        if (yield from reader.literal("}", found.keep)):
            break
        if held.full or not (yield from reader.literal(",", found.keep)):
            return found.called
    if not found.called and found.name is not None and found.early:
        found.call()
    return found.called


def call_list(reader: Reader, held: Held) -> Steps[bool]:
    """Read [call, call, ...]; returns whether there was a call. If the first is not one, `held` has what was read."""
    if not (yield from reader.literal("[", held.add)):
        return False
    called = False
    while True:
        keep = nowhere if called else held.add
        yield from reader.space(keep, None if called else held)
        if not (yield from call_object(reader, Held() if called else held)):
            return called
        called = True
        yield from reader.space()
        if not (yield from reader.literal(",")):
            yield from reader.literal("]")
            return True
