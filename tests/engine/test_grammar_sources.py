"""Grammars' processes: what expressions mean, and that random sources harm nobody."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
from grammar_cases import some_source
from grammar_pools import SMALL, A, B, accepts, may, start
from structured import EOS

from augury.config.errors import ConfigError
from augury.engine.grammar import Grammar, Grammars
from augury.engine.grammar_vocabulary import by_number
from augury.model.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def tokenizer(toy_model: Path) -> Tokenizer:
    return Tokenizer(toy_model)


@pytest.fixture(scope="module")
def grammars(tokenizer: Tokenizer) -> Grammars:
    return Grammars(tokenizer, 260)


@pytest.mark.parametrize("kind", ["regex", "pattern"])
@pytest.mark.parametrize(
    ("expression", "inside", "outside"),
    [
        (r"\d", "059", "\u0663\u096a\uff15a"),
        (r"[\d]", "059", "\u0663\uff15"),
        (r"\D", "a\u0663\uff15", "059"),
        (r"\w", "aZ_9", "\u00e9\u0663\u4e2d-"),
        (r"\W", "\u00e9\u0663-", "aZ_9"),
        (r"\s", " \u00a0\u2003", "a_"),
        (r"\S", "a\u00e9", " \u00a0"),
    ],
)
def test_classes_are_those_of_json_schema(
    grammars: Grammars, kind: str, expression: str, inside: str, outside: str
) -> None:
    for sign in inside + outside:
        if kind == "regex":
            got = accepts(grammars, {"regex": expression}, sign)
        else:
            schema = {"type": "string", "pattern": f"^{expression}$"}
            got = accepts(grammars, {"json": schema}, json.dumps(sign, ensure_ascii=False))
        assert got == (sign in inside), (expression, sign)
    assert re.fullmatch(r"\d", "\u0663")  # Python's is wider


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ({"json": {"const": "a<eos>b"}}, '"a<eos>b"'),
        ({"choice": ["a<eos>b"]}, "a<eos>b"),
        ({"regex": "a<eos>b"}, "a<eos>b"),
        ({"grammar": 'start: "a<eos>b"'}, "a<eos>b"),
    ],
)
def test_a_text_that_spells_a_control_token_is_text(
    grammars: Grammars, tokenizer: Tokenizer, form: dict[str, Any], text: str
) -> None:
    """A constant leaves no choice, and the library would write it as the tokenizer does: as the end of the answer."""
    grammar = start(grammars, form)
    for sign in text:
        [token] = tokenizer.inner.encode(sign, add_special_tokens=False)
        assert may(grammar.masks[0]) == [token]
        if not grammar.consume(token):
            grammar.look_ahead([], [])


def test_a_grammar_may_name_a_control_token(grammars: Grammars) -> None:
    """In Lark, outside of strings; as before they had other names."""
    lark = 'start: "a" <eos> "<eos>" // <eos>'
    assert by_number(lark, {"<eos>": 256}) == 'start: "a" <[256]> "<eos>" // <eos>'
    grammar = start(grammars, {"grammar": 'start: "a" <eos>'})
    grammar.consume(A)
    grammar.look_ahead([], [])
    assert may(grammar.masks[0]) == [EOS]


@pytest.mark.parametrize("part", range(4))
def test_random_sources_harm_nobody(tokenizer: Tokenizer, part: int) -> None:
    """Every one is refused in words or matches random texts; no process dies of anything but its time."""
    grammars, dice = Grammars(tokenizer, 260), random.Random(part)
    used = 0
    for _ in range(40):
        try:
            grammar = start(grammars, some_source(dice), ignore_eos=dice.random() < 0.2)
        except ConfigError as error:
            assert "structured_outputs" in str(error)
            continue
        used += walk(grammar, dice)
    counts = grammars.pool.counts
    assert counts["crash"] == counts["stack"] == counts["memory"] == counts["retried"] == 0, counts
    assert used > 10 and accepts(grammars, SMALL, "aba")


def walk(grammar: Grammar, dice: random.Random) -> bool:
    """Follow a grammar where dice lead, with drafts of all kinds."""
    for _ in range(25):
        allowed = may(grammar.masks[0])
        if not allowed or grammar.error is not None:
            break
        count = dice.randint(0, 6)
        tokens = [dice.choice([*allowed, A, B, EOS, 999]) for _ in range(count)]
        parents = [dice.randint(-1, i - 1) for i in range(count)]
        kept = grammar.look_ahead(tokens, parents)
        assert set(kept) <= set(range(count)) and len(grammar.masks) == 1 + len(kept)
        if grammar.error is not None or grammar.consume(dice.choice(allowed)):
            break
        grammar.look_ahead([], [])
    return True
