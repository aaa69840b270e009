"""Reasoning between marks, such as <think> and </think>, before an answer."""

from __future__ import annotations

from typing import NamedTuple

from augury.serve.parsers.reader import Format, Held, Reader, Steps, marks


class Family(NamedTuple):
    """How models of one kind mark their reasoning."""

    begin: str = "<think>"
    end: str = "</think>"
    begins: bool = True  # an answer begins with reasoning, with or without its mark
    stops: tuple[str, ...] = ()  # marks of calls, which end the reasoning as well
    switch: tuple[str, ...] = ("enable_thinking", "thinking")  # of the chat template, that turn it off
    default: bool = True  # whether the template thinks by default


FAMILIES = {
    "deepseek_r1": Family(switch=()),
    "deepseek_v3": Family(default=False),
    "holo2": Family(),
    "qwen3": Family(stops=("<tool_call>",)),
    "mimo": Family(stops=("<tool_call>",)),
    "glm45": Family(stops=("<tool_call>",)),
    "glm47": Family(stops=("<tool_call>",)),
    "kimi_k2": Family(stops=("<|tool_calls_section_begin|>",)),
    "minimax_m2": Family(switch=()),
    "step3": Family(switch=()),
    "seed_oss": Family("<seed:think>", "</seed:think>", stops=("<seed:tool_call>",)),
    "mistral": Family("[THINK]", "[/THINK]", False, ("[TOOL_CALLS]",), ()),
}


def think(family: Family, begins: bool) -> Format:
    """Reasoning at the beginning, or from its mark on; the rest is content."""

    ends, starts = marks(family.end, *family.stops), marks(family.begin, *family.stops)

    def read(reader: Reader) -> Steps[None]:
        inside, white = begins, Held()
        if inside:
            yield from reader.space(white.add, white)
            if not (yield from reader.literal(family.begin)):
                reader.reasoning(white.text)
        else:
            inside = (yield from reader.upto(starts, reader.plain, take=False)) == family.begin
            yield from reader.literal(family.begin)
        if inside and (yield from reader.upto(ends, reader.reasoning, take=False)) == family.end:
            yield from reader.literal(family.end)
        yield from reader.rest(reader.plain)

    return read
