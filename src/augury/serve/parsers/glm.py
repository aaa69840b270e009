"""GLM 4.5: <tool_call>NAME<arg_key>key</arg_key><arg_value>value</arg_value>...</tool_call>."""

from __future__ import annotations

import re

from augury.serve.parsers.reader import Format, Held, Marks, Reader, Steps, nowhere, twice
from augury.serve.parsers.typed import Arguments, Tools

CALL, CALL_END = "<tool_call>", "</tool_call>"
KEY, VALUE, VALUE_END = "<arg_key>", "<arg_value>", "</arg_value>"
BEGINS = Marks(CALL)
INSIDE = Marks(KEY, CALL_END)
KEY_ENDS = Marks("</arg_key>", CALL_END)
VALUES = Marks(VALUE, KEY, CALL_END)
VALUE_ENDS = Marks(VALUE_END, CALL_END)
NAMED = re.compile(r"[\w.:/-]{1,512}")


def glm45(tools: Tools) -> Format:
    """Calls between tags; the schemas say which values are not strings."""

    def read(reader: Reader) -> Steps[None]:
        while (yield from reader.upto(BEGINS, reader.content)):
            held, name = Held(CALL), Held()
            mark = yield from reader.upto(INSIDE, twice(held, name), held, take=False)
            called = name.text.strip()
            if not mark or not NAMED.fullmatch(called):
                reader.content(held.text)
                continue
            reader.call(called)
            yield from _members(reader, Arguments(reader, tools.get(called, {})), mark)

    return read


def _members(reader: Reader, arguments: Arguments, mark: str) -> Steps[None]:
    while mark == KEY:
        yield from reader.literal(KEY)
        key = Held()
        yield from reader.upto(KEY_ENDS, key.add, key, take=False)
        mark = yield from reader.upto(VALUES, nowhere, take=False)
        if mark == VALUE:
            yield from reader.literal(VALUE)
            arguments.begin(key.text.strip())
            if not (yield from reader.upto(VALUE_ENDS, arguments.add, take=False)):
                return  # cut off in a value: what has come of it is kept
            arguments.end()
            mark = yield from reader.upto(INSIDE, nowhere, take=False)
    yield from reader.literal(CALL_END)
    arguments.close()
