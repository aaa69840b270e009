"""The vocabulary that grammars are matched against: a text that spells a control token is text, never that token.

llguidance writes what a grammar leaves no choice about as its tokenizer would write it. A tokenizer that finds the
spelling of a control token makes the token of it: a constant with `<|im_end|>` in it would end the answer there. So
control tokens have other names here, which no text has; a Lark grammar that asks for one asks for its number.
"""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

# What a name in a Lark grammar may stand in without being one: a string, a regular expression, a remark.
QUOTED = r'"(?:\\.|[^"\\\n])*"|/(?:\\.|[^/\\\n])+/|//.*'


class GrammarVocabulary(NamedTuple):
    """A tokenizer of llguidance's, and the control tokens by the names that they have elsewhere."""

    tokenizer: Any
    controls: dict[str, int]


def read_vocabulary(text: str, size: int, ends: list[int]) -> GrammarVocabulary:
    """From a tokenizer's JSON; a ValueError if the library cannot read it."""
    from llguidance import LLTokenizer

    hidden, controls = _hide_controls(text)
    try:
        return GrammarVocabulary(LLTokenizer(hidden, n_vocab=size, eos_token=ends), controls)
    except ValueError:  # the tokenizer needs one of those names for itself
        return GrammarVocabulary(LLTokenizer(text, n_vocab=size, eos_token=ends), {})


def _hide_controls(text: str) -> tuple[str, dict[str, int]]:
    told = json.loads(text)
    special = [token for token in told.get("added_tokens") or () if token["special"]]
    controls = {token["content"]: token["id"] for token in special}
    names = {name: f"\0{number}\0" for name, number in controls.items()}
    for token in special:
        token["content"] = names[token["content"]]
    model = told["model"]
    if isinstance(words := model.get("vocab"), dict):
        model["vocab"] = {names.get(word, word): number for word, number in words.items()}
    elif isinstance(words, list):  # with scores
        model["vocab"] = [[names.get(word, word), *rest] for word, *rest in words]
    if model.get("unk_token") in names:
        model["unk_token"] = names[model["unk_token"]]
    return json.dumps(told), controls


def by_number(grammar: str, controls: dict[str, int]) -> str:
    """A Lark grammar with the numbers of the control tokens that it names."""
    named = sorted((name for name in controls if name.startswith("<") and name.endswith(">")), key=len, reverse=True)
    if not named:
        return grammar
    found = re.compile(f"{QUOTED}|({'|'.join(map(re.escape, named))})")
    return found.sub(lambda one: f"<[{controls[one[1]]}]>" if one[1] else one[0], grammar)
