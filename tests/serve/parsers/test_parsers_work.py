"""What a hostile answer can cost: work that grows with the text and no faster, and buffers with a limit."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
from tool_texts import WRITERS

from augury.serve.parsers.choose import REASONING_PARSERS, TOOL_PARSERS, Parsers
from augury.serve.parsers.events import CALL, CONTENT, merged
from augury.serve.parsers.reader import LONGEST, Chain, Marks

HOSTILE = (
    "<", "<tool_call>", "<tool_call>{", '<tool_call>{"name": "', "[TOOL_CALLS]", "[TOOL_CALLS][", "{", '{"', "\n",
    '<tool_call>{"name":"f","arguments":[', "<|channel|>", "<|start|>", "<|channel|>x<|message|>", "[f(", "[f(a=[",
    "<function=f><parameter=a>", "<parameter=", "<tool_call>f<arg_key>", "<arg_value>", "<｜tool▁calls▁begin｜>", "\\",
    "<｜tool▁call▁begin｜>", "</think>", " \t", "<function_call>", "<|python_tag|>", "'", '"', "<|tool_call|> [",
)  # fmt: skip


def calls_of(work: Callable[[], Any]) -> int:
    """Function calls that some work takes, Python's and C's: the same on every machine."""
    count = 0

    def seen(*_: Any) -> None:
        nonlocal count
        count += 1

    sys.setprofile(seen)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def read(make: Callable[[], Chain], text: str) -> list[Any]:
    parser = make()
    return merged([*(event for sign in text for event in parser.feed(sign)), *parser.finish()])


@pytest.mark.parametrize("name", WRITERS)
def test_work_grows_with_the_text_and_no_faster(name: str) -> None:
    for hostile in HOSTILE:
        short, long = (hostile * (size // len(hostile)) for size in (200, 800))
        few, many = (calls_of(lambda t=text: read(lambda: Parsers(name).of({}), t)) for text in (short, long))
        assert many < 5 * few, (hostile, few, many)


@pytest.mark.parametrize("name", [*TOOL_PARSERS, *(f"reasoning {name}" for name in REASONING_PARSERS)])
def test_no_character_is_looked_at_again_and_again(name: str) -> None:
    """Fed one by one, a text waits in the reader only while it may be the beginning of a mark."""
    kind, _, rest = name.partition(" ")
    parsers = Parsers(None, rest) if kind == "reasoning" else Parsers(name)
    for hostile in HOSTILE:
        chain = parsers.of({})
        for sign in hostile * (1500 // len(hostile)):
            chain.feed(sign)
            assert chain.kept < len("<|tool_call_argument_begin|>"), hostile


def test_what_is_held_back_has_a_limit_and_becomes_content() -> None:
    """By the text alone: where it is cut changes nothing, not even at the limit."""
    for begin, name in (('<tool_call>{"x": "', "hermes"), ("[f(a='", "pythonic"), ("<tool_call>", "glm45")):
        for size in (LONGEST - 1, LONGEST, LONGEST + 1, LONGEST + 9, 2 * LONGEST):
            text = begin + "x" * (size - len(begin))
            parser = Parsers(name).of({})
            before = merged(parser.feed(text))
            assert not before if size < LONGEST else before or size < LONGEST + 9, (name, size)
            whole = merged([*before, *parser.finish()])
            assert whole == [(CONTENT, text)]
            parser = Parsers(name).of({})
            pieces = [text[at : at + 4097] for at in range(0, len(text), 4097)]
            assert merged([*(e for piece in pieces for e in parser.feed(piece)), *parser.finish()]) == whole


def test_a_long_argument_goes_out_while_it_is_written() -> None:
    """It is not held back, so that its length has no limit but the answer's."""
    for name, begin, end in (
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "', '"}}</tool_call>'),
        ("qwen3_coder", "<function=f><parameter=a>", "</parameter></function>"),
        ("openai", '<|channel|>commentary to=functions.f<|message|>{"a": "', '"}<|call|>'),
    ):
        parser = Parsers(name).of({})
        found = [*parser.feed(begin + "x" * 3 * LONGEST)]
        assert sum(len(text) for kind, text in found if kind != CALL) >= 3 * LONGEST, name
        assert merged([*found, *parser.feed(end), *parser.finish()])[0] == (CALL, "f")


def test_deep_nesting_is_no_recursion() -> None:
    deep = 50_000
    for name, text in (
        ("hermes", '<tool_call>{"name": "f", "arguments": ' + "[" * deep),
        ("pythonic", "[f(a=" + "[" * 20_000 + "]" * 20_000 + ")]"),
        ("qwen3_coder", "<function=f><parameter=a>" + "[" * 60_000 + "</parameter></function>"),
        ("glm45", "<tool_call>f<arg_key>a</arg_key><arg_value>" + "[" * 60_000 + "</arg_value></tool_call>"),
    ):
        parser = Parsers(name).of({"f": {"a": {"type": "array"}}})
        assert [*parser.feed(text), *parser.finish()], name


@pytest.mark.parametrize("number", ["1e999", "-1e999", "1.5e400"])
def test_a_number_that_json_has_no_word_for_is_no_call(number: str) -> None:
    parser = Parsers("pythonic").of({})
    text = f"[f(a={number})]"
    events = [*parser.feed(text), *parser.finish()]
    assert "".join(event.text for event in events) == text and {event.kind for event in events} == {"content"}


def test_marks_that_hold_each_other_are_a_mistake() -> None:
    with pytest.raises(AssertionError):
        Marks("<tool_call>", "tool")
