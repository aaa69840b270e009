"""The vocabulary that grammars are matched against: a text that spells a control token is text, never that token.

Where a grammar leaves no choice, llguidance tokenizes the forced text. A tokenizer that finds the spelling of a control
token in it makes it that token: a constant with `<|im_end|>` in it would end the answer there. So control tokens are
renamed here, to names that no text contains; a Lark grammar that asks for one is made to ask for its number.
"""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

# Where the name of a token in a Lark grammar does not mean the token: a string, a regular expression, a comment.
QUOTED = r'"(?:\\.|[^"\\\n])*"|/(?:\\.|[^/\\\n])+/|//.*'


class GrammarVocabulary(NamedTuple):
    """llguidance's tokenizer, and the ids of the control tokens by the names that they have elsewhere."""

    tokenizer: Any
    controls: dict[str, int]


def read_vocabulary(text: str, size: int, ends: list[int]) -> GrammarVocabulary:
    """Read a tokenizer's JSON; a ValueError if the library cannot."""
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
    """Replace the names of control tokens in a Lark grammar by their numbers."""
    named = sorted((name for name in controls if name.startswith("<") and name.endswith(">")), key=len, reverse=True)
    if not named:
        return grammar
    found = re.compile(f"{QUOTED}|({'|'.join(map(re.escape, named))})")
    return found.sub(lambda one: f"<[{controls[one[1]]}]>" if one[1] else one[0], grammar)
