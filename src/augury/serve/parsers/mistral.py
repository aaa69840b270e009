"""Mistral: [TOOL_CALLS] and a list of calls, or, from its eleventh tokenizer on, [TOOL_CALLS]name[ARGS]{...}."""

from __future__ import annotations

import re

from augury.serve.parsers.json_calls import LONGEST_NAME, call_list, call_object, value
from augury.serve.parsers.reader import Held, Marks, Reader, Steps, twice

BEGIN = "[TOOL_CALLS]"
BEGINS = Marks(BEGIN)
NAME = re.compile(r"[^\s\[{]*")
WORD = re.compile(r"[^\[{]*")


def mistral(reader: Reader) -> Steps[None]:
    """Both formats of calls; what follows the mark tells which one it is."""
    while (yield from reader.upto(BEGINS, reader.content)):
        held = Held(BEGIN)
        yield from reader.space(held.add, held)
        first = yield from reader.peek()
        read = {"[": call_list, "{": call_object}.get(first, _named)
        if not (yield from read(reader, held)):
            reader.content(held.text)


def _named(reader: Reader, held: Held) -> Steps[bool]:
    name = Held()
    yield from reader.run(NAME, twice(held, name), held)
    yield from reader.space(held.add, held)
    if (yield from reader.literal("[CALL_ID]", held.add)):
        yield from reader.run(WORD, held.add, held)
    yield from reader.literal("[ARGS]", held.add)
    yield from reader.space(held.add, held)
    if not name.text or len(name.text) > LONGEST_NAME or (yield from reader.peek()) != "{":
        return False
    reader.call(name.text)
    yield from value(reader, reader.arguments)
    return True
