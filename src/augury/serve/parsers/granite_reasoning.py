"""Granite 3.2: "Here is my thought process: ... Here is my response: ..."."""

from __future__ import annotations

from augury.serve.parsers.reader import Held, Marks, Reader, Steps

THOUGHTS = ("Here is my thought process:", "Here's my thought process:")
RESPONSE = Marks("Here is my response:", "Here's my response:")


def granite_reasoning(reader: Reader) -> Steps[None]:
    """Reasoning after the first sentence, content after the second; an answer without them is content."""
    held = Held()
    yield from reader.space(held.add, held)
    if (yield from _thinks(reader, held)):
        yield from reader.upto(RESPONSE, reader.reasoning)
    else:
        reader.plain(held.text)
    yield from reader.rest(reader.plain)


def _thinks(reader: Reader, held: Held) -> Steps[bool]:
    if not (yield from reader.literal("Here", held.add)):
        return False
    for sentence in THOUGHTS:
        if (yield from reader.literal(sentence.removeprefix("Here"))):
            return True
    return False
