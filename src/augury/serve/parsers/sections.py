"""DeepSeek V3 and V3.1, Kimi K2: a section of calls, each with a name, a mark and its arguments."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from augury.serve.parsers.json_calls import LONGEST_NAME, value
from augury.serve.parsers.reader import Held, Reader, Steps, marks, nowhere, twice

FENCE = "```json"


class Section(NamedTuple):
    """The marks of one family, and how a call's name is read."""

    begin: str
    end: str
    call: str
    call_end: str
    separator: str
    named: Callable[[str], str]
    fenced: bool = False  # the name is on the line after the mark, the arguments are in a fence


def _section(reader: Reader, of: Section) -> Steps[None]:
    begins, inside = marks(of.begin), marks(of.call, of.end)
    while (yield from reader.upto(begins, reader.content)):
        while (yield from reader.upto(inside, nowhere)) == of.call:
            held = Held(of.call)
            if not (yield from _call(reader, of, held)):
                reader.content(held.text)


def _call(reader: Reader, of: Section, held: Held) -> Steps[bool]:
    name = Held()
    sink = twice(held, name)
    if (yield from reader.upto(marks(of.separator, of.call_end, of.end), sink, held)) != of.separator:
        return False
    held.add(of.separator)
    if of.fenced:
        name = Held()
        if not (yield from reader.upto(marks("\n"), twice(held, name), held)):
            return False
        held.add("\n")
        yield from reader.literal(FENCE, held.add)
    called = of.named(name.text.strip())
    yield from reader.space(held.add, held)
    if not called or len(called) > LONGEST_NAME:
        return False
    reader.call(called)
    yield from value(reader, reader.arguments)
    yield from reader.upto(marks(of.call_end, of.call, of.end), nowhere, take=False)
    return True


def _of_kimi(told: str) -> str:
    """`functions.name:0` to `name`."""
    return told.removeprefix("functions.").rpartition(":")[0] or told.removeprefix("functions.")


_V3 = Section(
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁calls▁end｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁sep｜>",
    str,
    True,
)
deepseek_v3 = partial(_section, of=_V3)
deepseek_v31 = partial(_section, of=_V3._replace(fenced=False))
kimi_k2 = partial(
    _section,
    of=Section(
        "<|tool_calls_section_begin|>",
        "<|tool_calls_section_end|>",
        "<|tool_call_begin|>",
        "<|tool_call_end|>",
        "<|tool_call_argument_begin|>",
        _of_kimi,
    ),
)
