"""Advice on traces in which every turn sends the conversation again: answers counted once, prefixes told."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from augury.cli import app
from augury.methods.registry import LOOK_UPS
from augury.tools.advise.accept import from_lengths
from augury.tools.advise.drafters import DraftingCost
from augury.tools.advise.predict import Predictor
from augury.tools.advise.traffic import Recorded, Traffic
from augury.tools.replay.prefix import BLOCK, decoded_once, prefix_share
from augury.tools.replay.tokens import Script, encoder
from augury.tools.replay.traces import TraceReader


def script(*turns: tuple[int, int], text: list[int] | None = None) -> Script:
    """Ids from 0 on, with answers at these places."""
    length = max(stop for _, stop in turns)
    return Script(np.array(text or range(length), np.int64), list(turns), "", "")


def test_prefixes_counted_by_hand() -> None:
    """48 = three blocks of 16.

    First request: 40 tokens, answered by 8; nothing is cached. Second: those 48 and 20 more; three blocks are found,
    the fourth has new tokens. Third: the 40 tokens of the first again; two whole blocks lie before its last token.
    """
    first = script((40, 48))
    assert prefix_share([first]) == 0
    assert prefix_share([first, script((68, 72))]) == 48 / (40 + 68)
    assert prefix_share([first, script((68, 72)), script((40, 41))]) == (48 + 32) / (40 + 68 + 40)
    assert prefix_share([script((40, 48), (68, 72))]) == 48 / (40 + 68), "turns of one record are requests as well"
    other = script((68, 72), text=[7, *range(1, 72)])
    assert prefix_share([first, other]) == 0, "the first token differs, so every block does"


def test_a_prompt_that_is_cached_whole_still_computes_its_last_token() -> None:
    assert prefix_share([script((32, 33)), script((32, 33))]) == 16 / 64
    assert prefix_share([script((33, 34)), script((33, 34))]) == 32 / 66


@given(st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=70), min_size=1, max_size=6))
def test_prefixes_as_a_slow_reader_counts_them(prompts: list[list[int]]) -> None:
    texts = [[*prompt, 2] for prompt in prompts]
    found = 0
    for n, prompt in enumerate(prompts):
        shared = [
            len(list(takewhile(lambda two: two[0] == two[1], zip(prompt, old, strict=False)))) for old in texts[:n]
        ]
        found += min(max(shared, default=0), len(prompt) - 1) // BLOCK * BLOCK
    made = [Script(np.array(text, np.int64), [(len(text) - 1, len(text))], "", "") for text in texts]
    assert prefix_share(made) == found / sum(map(len, prompts))


def test_an_answer_is_decoded_where_it_was_first_given() -> None:
    growing = [script((4, 6)), script((4, 6), (9, 12)), script((4, 6), (9, 12), (15, 20))]
    assert [one.spans for one in decoded_once(growing)] == [[(4, 6)], [(9, 12)], [(15, 20)]]
    assert [one.spans for one in decoded_once([growing[2]])] == [growing[2].spans], "one record: all its turns"
    assert [one.spans for one in decoded_once([growing[0]] * 3)] == [[(4, 6)]] * 3, "asked again is answered again"
    assert [one.spans for one in decoded_once([growing[1]] * 2)] == [growing[1].spans] * 2, "so is a whole conversation"
    assert [one.spans for one in decoded_once([*growing[:2], growing[1]])][2] == [(9, 12)], "but not what it sent again"
    other = replace(growing[1], tenant="another")
    assert [one.spans for one in decoded_once([growing[0], other])][1] == other.spans
    assert [one.spans for one in decoded_once([Script(np.arange(3), [], "", "")])] == [[]], "a prompt alone"
    branch = script((4, 6), (9, 11), text=[*range(6), 50, 51, 52, 53, 54])
    assert [one.spans for one in decoded_once([growing[1], branch])] == [growing[1].spans, [(9, 11)]]


TURNS = [
    ("user", "find the bug in parse()"),
    ("assistant", "call: read parse.py"),
    ("tool", "def parse(x): return x"),
    ("assistant", "call: run tests"),
    ("tool", "2 failed"),
    ("assistant", "parse() forgets to strip"),
]


def snapshots() -> Iterator[dict[str, Any]]:
    """A log with the whole conversation at every answer."""
    for n, (role, _) in enumerate(TURNS):
        if role == "assistant":
            yield {"messages": [{"role": role, "content": said} for role, said in TURNS[: n + 1]]}


def pairs() -> Iterator[dict[str, Any]]:
    """The same as requests and responses."""
    for one in snapshots():
        *asked, said = one["messages"]
        yield {"request": {"messages": asked}, "response": {"choices": [{"message": said}]}}


def recorded(records: list[dict[str, Any]], tmp_path: Path) -> Recorded:
    file = tmp_path / "trace.jsonl"
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    return Recorded(TraceReader([file]), encoder("bytes"), "trace")


@pytest.mark.parametrize("method", ["ngram", "suffix"])
def test_three_ways_to_log_an_agent_come_to_the_same(method: str, tmp_path: Path) -> None:
    """One record with all turns, a record a turn, and requests with responses: the same answers and prefixes."""
    whole = recorded(list(snapshots())[-1:], tmp_path)
    told = [whole, recorded(list(snapshots()), tmp_path), recorded(list(pairs()), tmp_path)]
    traffic = [one.traffic() for one in told]
    assert [one.requests for one in traffic] == [3, 3, 3]
    assert len({(one.prompt_tokens, one.answer_tokens, one.prefix_share) for one in traffic}) == 1
    answers = [len(said) + 1 for role, said in TURNS if role == "assistant"]  # in bytes, with the end token
    assert traffic[0].answers == answers
    counts = [one.replayed({"method": method, **LOOK_UPS[method].starts[0]}, [4])[4] for one in told]
    assert {int(one.emitted.sum()) for one in counts} == {sum(answers) - 3}, "decoded tokens, each once"
    if method == "ngram":
        assert len({int(one.steps.sum()) for one in counts}) == 1


def test_the_report_has_a_line_and_the_json_a_key(tmp_path: Path) -> None:
    share = recorded(list(snapshots()), tmp_path).traffic().prefix_share
    words = [
        "advise",
        "--target",
        "llama-3.1-8b",
        "--gpu",
        "H200",
        "--trace",
        str(tmp_path / "trace.jsonl"),
        "--tokenizer",
        "bytes",
    ]
    said = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)
    assert share is not None and said["traffic"]["prefix_share"] == said["traffic"]["prefix_cached"] == round(share, 4)
    assert (
        f"prefixes: {share:.0%} of the prompt tokens begin an earlier request" in CliRunner().invoke(app, words).stdout
    )
    alone = json.loads(CliRunner().invoke(app, [*words[:5], "--json"]).stdout)
    assert alone["traffic"]["prefix_share"] is None


class Flat:
    """Every step takes 10 ms, every token of a prompt one."""

    name, leans, cannot = "flat", 0.0, None

    def step_ms(self, requests: int, rows: float, context: float) -> float:
        return 10.0

    def read_ms(self, tokens: float) -> float:
        return tokens

    def draft_ms(self, *_: object) -> float:
        return 0.0

    def spread(self, *_: object) -> float:
        return 0.0


def test_the_cache_changes_the_whole_and_not_the_decoding() -> None:
    """By hand: two tokens a step halve 100 steps of 10 ms; 1000 ms of reading stay, or a quarter of them."""
    cold = Traffic(prompt_tokens=1000.0, answer_tokens=101.0)
    cost: Any = Flat()
    always = from_lengths(2.0, 2.0, 2.0, 1)
    found = [
        Predictor(cost, one).at(always, DraftingCost("eagle3", None, False), 1, 1)
        for one in (cold, replace(cold, cached=0.75))
    ]
    assert [one.decode.value for one in found] == pytest.approx([2.0, 2.0])
    assert [one.whole.value for one in found] == pytest.approx([2000 / 1500, 1250 / 750])
