"""Hermes, Qwen 2.5 and 3, Granite 4: <tool_call>{"name": ..., "arguments": {...}}</tool_call>; and Granite 20B."""

from __future__ import annotations

import re

from augury.serve.parsers.json_calls import call_object
from augury.serve.parsers.reader import Held, Reader, Steps, marks, nowhere

EXCESS = re.compile(r"[\s}\]]*")  # models close more than they have opened


def hermes(reader: Reader) -> Steps[None]:
    """Calls between tags; a tag that no call follows is content."""
    yield from _tagged(reader, "<tool_call>", "</tool_call>")


def granite_20b(reader: Reader) -> Steps[None]:
    """Calls after <function_call>, which nothing closes."""
    yield from _tagged(reader, "<function_call>", "</function_call>")


def _tagged(reader: Reader, begin: str, end: str) -> Steps[None]:
    begins = marks(begin)
    while (yield from reader.upto(begins, reader.content)):
        held = Held(begin)
        yield from reader.space(held.add, held)
        if not (yield from call_object(reader, held)):
            reader.content(held.text)
            continue
        yield from reader.run(EXCESS, nowhere)
        yield from reader.literal(end)
