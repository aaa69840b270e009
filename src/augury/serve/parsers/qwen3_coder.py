"""Qwen3 Coder: <tool_call><function=NAME><parameter=KEY>value</parameter>...</function></tool_call>."""

from __future__ import annotations

import re

from augury.serve.parsers.json_calls import LONGEST_NAME
from augury.serve.parsers.reader import Format, Held, Marks, Reader, Steps, nowhere, twice
from augury.serve.parsers.typed import Arguments, Tools

CALL, CALL_END = "<tool_call>", "</tool_call>"
FUNCTION, FUNCTION_END = "<function=", "</function>"
KEY, KEY_END = "<parameter=", "</parameter>"
BEGINS = Marks(CALL, FUNCTION)
NAMED = re.compile(r"[^<>\n]*")
INSIDE = Marks(KEY, FUNCTION_END, CALL_END)
VALUE_ENDS = Marks(KEY_END, KEY, FUNCTION_END, CALL_END)


def qwen3_coder(tools: Tools) -> Format:
    """Calls between tags; the schemas say which values are not strings."""

    def read(reader: Reader) -> Steps[None]:
        while mark := (yield from reader.upto(BEGINS, reader.content)):
            held = Held(mark)
            if mark == CALL:
                yield from reader.space(held.add, held)
                if not (yield from reader.literal(FUNCTION, held.add)):
                    reader.content(held.text)
                    continue
            if not (yield from _function(reader, tools, held)):
                reader.content(held.text)
                continue
            yield from reader.space()
            yield from reader.literal(CALL_END)

    return read


def _function(reader: Reader, tools: Tools, held: Held) -> Steps[bool]:
    name = yield from _name(reader, held)
    if not name:
        return False
    reader.call(name)
    arguments = Arguments(reader, tools.get(name, {}), lines=True)
    mark = yield from reader.upto(INSIDE, nowhere, take=False)
    while mark == KEY:
        yield from reader.literal(KEY)
        key = yield from _name(reader, Held())
        arguments.begin(key)
        mark = yield from reader.upto(VALUE_ENDS, arguments.add, take=False)
        if not mark:
            return True  # cut off in a value: what has come of it is kept
        arguments.end()
        yield from reader.literal(KEY_END)
        mark = yield from reader.upto(INSIDE, nowhere, take=False)
    if mark == FUNCTION_END:
        yield from reader.literal(FUNCTION_END)
    arguments.close()
    return True


def _name(reader: Reader, held: Held) -> Steps[str]:
    """Read up to the next `>`; returns the name before it, or "" if there is none."""
    name = Held()
    yield from reader.run(NAMED, twice(held, name), held)
    closed = yield from reader.literal(">", held.add)
    return name.text.strip() if closed and len(name.text) <= LONGEST_NAME else ""
