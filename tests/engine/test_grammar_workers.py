"""Grammars' processes: what a source may do to its own, and that nobody else notices."""

from __future__ import annotations

import gc
import itertools
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from grammar_cases import (
    deep_schema,
    gbnf_chain,
    lark_chain,
    late_explosion,
    long_gbnf,
    reference_chain,
    size_of,
    slow_masks,
)
from grammar_pools import SMALL, A, B, accepts, bring, may, server_pid, start

from augury import SamplingParams
from augury.config.errors import ConfigError
from augury.engine.grammar import Ahead, Grammars, advance
from augury.engine.grammar_limits import GrammarLimits
from augury.model.tokenizer import Tokenizer
from augury.serve.compiling import Compiler

TIGHT = GrammarLimits(compile_seconds=0.4, burst_seconds=0.2, stack_bytes=1 << 20)


@pytest.fixture(scope="module")
def tokenizer(toy_model: Path) -> Tokenizer:
    return Tokenizer(toy_model)


@pytest.fixture(scope="module")
def grammars(tokenizer: Tokenizer) -> Grammars:
    return Grammars(tokenizer, 260)


@pytest.fixture(scope="module")
def tight(tokenizer: Tokenizer) -> Grammars:
    return Grammars(tokenizer, 260, TIGHT)


HOSTILE: dict[str, dict[str, Any]] = {
    "a chain of references": {"json": reference_chain(1000)},
    "thousands of Lark rules": {"grammar": lark_chain(4000)},
    "thousands of GBNF rules": {"grammar": gbnf_chain(1500)},
    "deep objects": {"json": deep_schema(300)},
    "a large enum": {"json": {"enum": [f"v{i * 7919 % 100003}" for i in range(30_000)]}},
    "a panic's candidate": {"json": {"type": "string", "maxLength": 10**30}},
    "a lone surrogate": {"choice": ["\ud800"]},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_source_is_compiled_or_refused_and_the_next_is_served(grammars: Grammars, name: str) -> None:
    start(grammars, SMALL)
    before = server_pid(grammars)
    try:
        assert may(start(grammars, HOSTILE[name]).masks[0])
    except ConfigError as error:
        (kind,) = HOSTILE[name]
        assert str(error).startswith(f"structured_outputs.{kind} cannot be used: ") and "\n" not in str(error)
        assert len(str(error)) < 600
    assert accepts(grammars, SMALL, "aba") and server_pid(grammars) == before


@pytest.mark.parametrize(
    ("form", "words", "outcome"),
    [
        ({"json": reference_chain(1000)}, r"structured_outputs\.json .* more than 1 MiB of stack", "stack"),
        ({"grammar": lark_chain(4000)}, r"structured_outputs\.grammar .* more than 1 MiB of stack", "stack"),
        ({"grammar": gbnf_chain(4000)}, r"grammar .* takes more than 0.4 seconds", "time"),
    ],
    ids=["references", "Lark", "GBNF"],
)
def test_the_limit_that_was_broken_is_named_and_counted(
    tight: Grammars, form: dict[str, Any], words: str, outcome: str
) -> None:
    before = tight.pool.counts[outcome]
    for _ in range(2):  # the second time from memory
        with pytest.raises(ConfigError, match=words):
            start(tight, form)
    assert tight.pool.counts[outcome] == before + 1
    assert accepts(tight, SMALL, "aba")


def test_memory_has_a_limit(tokenizer: Tokenizer) -> None:
    narrow = Grammars(tokenizer, 260, GrammarLimits(memory_bytes=12 << 20))
    with pytest.raises(ConfigError, match=r"structured_outputs\.json .* more than 12 MiB of memory"):
        start(narrow, {"json": {"enum": [f"v{i * 7919 % 100003}" for i in range(40_000)]}})
    assert narrow.pool.counts["memory"] == 1 and accepts(narrow, SMALL, "aba")


def test_a_refusal_that_is_remembered_keeps_nothing_of_those_who_asked(grammars: Grammars) -> None:
    """An error that is raised again and again would grow by its frames, with all that each request brought."""
    compiler = Compiler(SimpleNamespace(grammars=grammars))  # type: ignore[arg-type]
    asked: list[weakref.ref[SamplingParams]] = []
    for job in range(12):
        params = SamplingParams(structured_outputs={"regex": "[ab"})
        asked.append(weakref.ref(params))
        compiler.submit(job, params)
        del params
        found: list[Any] = []
        bring(grammars, lambda found=found: bool(found.extend(compiler.finished()) or found))
        assert isinstance(found[0].error, ConfigError) and "cannot be used" in str(found[0].error)
    del found
    gc.collect()
    assert [one() for one in asked] == [None] * 12


def test_a_source_over_its_size_is_not_looked_at(grammars: Grammars) -> None:
    for kind, value in (("grammar", "x" * 2_000_000), ("json", {"enum": ["x" * 2_000_000]}), ("choice", ["x"] * 10**6)):
        with pytest.raises(ConfigError, match=rf"structured_outputs\.{kind} has \d+ characters; the limit is 1048576"):
            SamplingParams(structured_outputs={kind: value})


def test_a_parser_that_never_comes_back_ends_its_own_requests_and_no_others(grammars: Grammars) -> None:
    """The first mask takes a millisecond; after 500 a's and a b the library computes for hours."""
    guilty, twin = (start(grammars, {"grammar": late_explosion(100)}) for _ in range(2))
    other = start(grammars, {"regex": "[ab]{900}"})
    for token in itertools.chain([A] * 500, [B] * 5):
        advance([Ahead(guilty, [token], [], []), Ahead(other, [token], [], [])])
        assert not other.consume(token)
        other.look_ahead([], [])
        if guilty.consume(token) or guilty.error:
            break
        guilty.look_ahead([], [])
    assert "its masks take more than 5 ms each" in str(guilty.error)
    assert other.error is None and A in may(other.masks[0])
    assert twin.consume(A) and "its masks take" in str(twin.error)  # it had the same grammar
    assert not start(grammars, {"grammar": late_explosion(100)}).consume(A)  # which can be asked for again


def test_many_grammars_of_one_step_share_what_one_may_take() -> None:
    limits = GrammarLimits()
    for processes, cores in itertools.product(range(1, 300), (1, 2, 16)):
        share = limits.share(processes, cores)
        assert limits.burst_seconds / 10 <= share <= limits.burst_seconds
        assert share * processes / max(cores, 1) <= max(
            limits.burst_seconds, limits.burst_seconds / 10 * processes / cores
        )
    assert limits.share(1, 1) == limits.share(16, 16) == limits.burst_seconds > limits.share(17, 16)


def test_masks_that_take_long_every_time_use_up_their_time(tight: Grammars) -> None:
    grammar, steps = start(tight, {"grammar": slow_masks(60)}), 0
    while grammar.error is None and steps < 2000:
        steps += 1
        if grammar.consume(A):
            break
        grammar.look_ahead([], [])
    assert grammar.error is not None and steps < 2000


def test_a_draft_that_takes_long_loses_nodes_and_not_the_request(tokenizer: Tokenizer) -> None:
    hurried = Grammars(tokenizer, 260, GrammarLimits(draft_seconds=0.0))
    grammar, calm = start(hurried, {"regex": "a{30}"}), start(Grammars(tokenizer, 260), {"regex": "a{30}"})
    assert grammar.look_ahead([A] * 20, list(range(-1, 19))) == []
    assert calm.look_ahead([A] * 20, list(range(-1, 19))) == list(range(20))
    assert may(grammar.masks[0]) == may(calm.masks[0]) == [A]


def test_the_chain_is_the_one_that_was_sent() -> None:
    assert 100_000 < size_of(reference_chain(1000)) < 200_000 and len(long_gbnf(478_000)) == 478_000
