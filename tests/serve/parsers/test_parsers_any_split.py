"""What a parser finds is a function of the text: any split of it gives the same events, and what it says comes back."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest
import tool_texts as texts
from hypothesis import given, settings
from hypothesis import strategies as st

from augury.serve.parsers.choose import TOOL_PARSERS, Parsers
from augury.serve.parsers.events import ARGUMENTS, CONTENT, Event, merged
from augury.serve.parsers.reader import Chain
from augury.serve.parsers.typed import Tools, schemas_of

TEXTS, SPLITS = 500, 20
SEEDS = st.integers(0, 2**32)


def events(parser: Chain, pieces: list[str]) -> list[Event]:
    return merged([*(event for piece in pieces for event in parser.feed(piece)), *parser.finish()])


def values(found: list[Event]) -> list[tuple[str, Any]]:
    """Events with arguments as values, however they are spaced."""
    return [(kind, json.loads(text) if kind == ARGUMENTS else text) for kind, text in found]


def check(parsers: Parsers, tools: Tools | None, text: str, dice: Random) -> list[Event]:
    """The events of a text: the same for every split of it, also character by character, and for its beginning."""
    whole = events(parsers.of(tools), [text])
    assert events(parsers.of(tools), list(text)) == whole
    for _ in range(SPLITS):
        assert events(parsers.of(tools), pieces := texts.cuts(text, dice)) == whole, pieces
    begun = text[: dice.randint(0, len(text))]  # a client has seen the same by then, however it came
    parser = parsers.of(tools)
    pieces = texts.cuts(begun, dice)
    assert merged(event for piece in pieces for event in parser.feed(piece)) == merged(parsers.of(tools).feed(begun))
    return whole


@pytest.mark.parametrize("name", texts.WRITERS)
@given(seed=SEEDS)
@settings(max_examples=TEXTS, deadline=None)
def test_calls_come_back_from_any_split(name: str, seed: int) -> None:
    dice = Random(seed)
    said = texts.answer(dice)
    if name in texts.NO_PROSE:
        said = said._replace(content="" if said.calls else said.content)
    if name != "openai":
        said = said._replace(reasoning="")
    text = texts.text_of(name, said, dice)
    found = check(Parsers(name), schemas_of(texts.tools_of(said)), text, dice)
    assert values(found) == values(texts.events(said)), text


@pytest.mark.parametrize("name", texts.THINKERS)
@given(seed=SEEDS)
@settings(max_examples=TEXTS, deadline=None)
def test_reasoning_comes_back_from_any_split(name: str, seed: int) -> None:
    dice = Random(seed)
    said = texts.Answer(texts.prose(dice), texts.prose(dice), [])
    begin, end = texts.THINKERS[name]
    found = check(Parsers(None, name), None, f"{begin}{said.reasoning}{end}{said.content}", dice)
    assert found == texts.events(said)


@pytest.mark.parametrize("name", texts.WRITERS)
@given(seed=SEEDS)
@settings(max_examples=60, deadline=None)
def test_damaged_texts_have_the_same_events_however_they_are_cut(name: str, seed: int) -> None:
    dice = Random(seed)
    said = texts.answer(dice)
    text = texts.damaged(texts.text_of(name, said, dice), dice)
    check(Parsers(name, dice.choice([None, "qwen3", "granite", "deepseek_r1"])), {}, text, dice)


@pytest.mark.parametrize("name", TOOL_PARSERS)
@given(text=st.text(alphabet="<>|/[]{}()\"'\\=,:` \n" + "tolca_feghmksrnpy｜▁", max_size=60), seed=SEEDS)
@settings(max_examples=60, deadline=None)
def test_any_text_at_all_is_read_without_an_error(name: str, text: str, seed: int) -> None:
    for begin in ("", "<tool_call>", "[TOOL_CALLS]", "<|channel|>", '{"name": "f", "arguments": '):
        check_quick(name, begin + text, Random(seed))


def check_quick(name: str, text: str, dice: Random) -> None:
    whole = events(Parsers(name).of({}), [text])
    assert events(Parsers(name).of({}), texts.cuts(text, dice)) == whole
    if not any(kind != CONTENT for kind, _ in whole) and name not in (
        "openai",
        "deepseek_v3",
        "deepseek_v31",
        "kimi_k2",
    ):
        assert "".join(text for _, text in whole) == text  # what is no call is lost nowhere
