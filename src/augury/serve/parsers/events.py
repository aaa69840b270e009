"""What a parser finds in an answer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

CONTENT, REASONING = "content", "reasoning"
CALL, ARGUMENTS = "call", "arguments"  # a call's name begins it; its arguments follow, until the next call


class Event(NamedTuple):
    """One part of an answer: a piece of text of some kind, or the name of a function that is called."""

    kind: str
    text: str


def merged(events: Iterable[Event]) -> list[Event]:
    """The same events with neighbouring pieces of one kind put together; a call is a whole by itself."""
    found: list[tuple[str, list[str]]] = []
    for kind, text in events:
        if kind != CALL and found and found[-1][0] == kind:
            found[-1][1].append(text)
        else:
            found.append((kind, [text]))
    return [Event(kind, "".join(texts)) for kind, texts in found]
