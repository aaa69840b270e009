"""Granite 3: a list of calls after <|tool_call|> or <tool_call>."""

from __future__ import annotations

from augury.serve.parsers.json_calls import call_list
from augury.serve.parsers.reader import Held, Marks, Reader, Steps

BEGINS = Marks("<|tool_call|>", "<tool_call>")


def granite(reader: Reader) -> Steps[None]:
    """A list after a mark; the end of the list ends the calls."""
    while mark := (yield from reader.upto(BEGINS, reader.content)):
        held = Held(mark)
        yield from reader.space(held.add, held)
        if not (yield from call_list(reader, held)):
            reader.content(held.text)
