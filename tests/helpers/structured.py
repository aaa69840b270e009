"""What tests of structured output share: forms, and whether a text has them by something other than the engine."""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from augury import LLM

DEVICE = os.environ.get("AUGURY_TEST_DEVICE", "cpu")
PROMPTS = ["abcabcabc", '{"a": 1, "b": true}', "z", "the cat sat on the mat and the cat sat", "1212121"]
NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3, "prompt_lookup_min": 1}
TREE = {"num_speculative_tokens": 4, "tree": {"max_nodes": 12, "top_k": 3}}
EOS = 256
PERSON = {
    "type": "object", "required": ["name", "age", "tags"], "additionalProperties": False,
    "properties": {
        "name": {"type": "string", "maxLength": 6}, "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 4},
    },
}  # fmt: skip
FORMS: dict[str, dict[str, Any]] = {
    "json": {"json": PERSON, "disable_any_whitespace": True},
    "json text": {"json": json.dumps(PERSON), "whitespace_pattern": " ?"},
    "regex": {"regex": r"(ab|cd){2,12}[0-9]+e"},
    "choice": {"choice": ["ab", "abc", "abcabcabcabc", "né\n\"☃\\"]},
    "grammar": {"grammar": 'start: "(" start ")" | "x" start | "1212" start | "y"'},
    "gbnf": {"grammar": 'root ::= "abc" root | "12" root | [x-z]'},
    "json_object": {"json_object": True},
}  # fmt: skip


def in_form(name: str, text: str) -> bool:
    """Whether a whole answer has its form, by something other than the engine's parser."""
    if name.startswith("json"):
        value = json.loads(text)
        return isinstance(value, dict) if name == "json_object" else is_person(value)
    if name == "choice":
        return text in FORMS["choice"]["choice"]
    if name == "grammar":
        inner = re.fullmatch(r"((?:x|1212|\()*)y(\)*)", text)
        return bool(inner) and inner.group(1).count("(") == len(inner.group(2))
    return bool(re.fullmatch(FORMS["regex"]["regex"] if name == "regex" else "(abc|12)*[x-z]", text))


def is_person(value: Any) -> bool:
    """PERSON, checked by hand."""
    return (
        set(value) == {"name", "age", "tags"} and isinstance(value["name"], str) and len(value["name"]) <= 6
        and type(value["age"]) is int and 0 <= value["age"] <= 120
        and len(value["tags"]) <= 4 and set(value["tags"]) <= {"red", "green", "blue"}
    )  # fmt: skip


def make(model: Path, spec: dict[str, Any] | None = None, **options: Any) -> LLM:
    return LLM(str(model), device=DEVICE, **{"max_model_len": 256, **options}, speculative_config=spec)


def answers(llm: LLM, prompts: list[str], params: Any) -> list[tuple[list[int], str, str | None]]:
    outputs = llm.generate(prompts, params, use_tqdm=False)
    assert llm.engine.scheduler.pool.num_free == llm.engine.scheduler.pool.num_blocks
    return [(c.token_ids, c.text, c.finish_reason) for o in outputs for c in o.outputs]


def next_logits(directory: Path) -> Callable[[list[int]], Tensor]:
    """A model's scores for the token behind some tokens, by transformers."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(directory)

    @torch.inference_mode()
    def logits(tokens: list[int]) -> Tensor:
        return model(torch.tensor([tokens])).logits[0, -1].float()

    return logits


def onward(spelled: list[list[int]], prefix: list[int]) -> list[int]:
    """What may follow a prefix of some words: the end of text exactly where one of them ends."""
    after = {w[len(prefix)] for w in spelled if w[: len(prefix)] == prefix and len(w) > len(prefix)}
    return sorted(after | {EOS}) if prefix in spelled else sorted(after)


def words(depth: int = 2) -> st.SearchStrategy[str]:
    """Small regular expressions that Python reads too."""
    atom = st.sampled_from(["a", "b", "1", "[a-c]", "[^a-y]", r"\d", "(ab)", "abc"])
    if depth == 0:
        return atom
    inner = words(depth - 1)
    many = st.tuples(inner, st.sampled_from(["", "?", "{1,3}", "{2}", "{0,5}"])).map(lambda p: f"(?:{p[0]}){p[1]}")
    return st.lists(many, min_size=1, max_size=3).map("".join) | st.tuples(inner, inner).map("|".join)


def schemas(depth: int = 2) -> st.SearchStrategy[tuple[dict[str, Any], Callable[[Any], bool]]]:
    """A schema, and the same as a Python check."""
    leaf = st.sampled_from(
        [
            ({"type": "boolean"}, lambda v: isinstance(v, bool)),
            ({"type": "null"}, lambda v: v is None),
            ({"enum": ["ab", 12, None]}, lambda v: v in ("ab", 12, None)),
            ({"type": "integer", "minimum": -5, "maximum": 40}, lambda v: type(v) is int and -5 <= v <= 40),
            ({"type": "string", "maxLength": 3}, lambda v: isinstance(v, str) and len(v) <= 3),
        ]
    )
    if depth == 0:
        return leaf
    inner = schemas(depth - 1)
    lists = inner.map(
        lambda s: (
            {"type": "array", "items": s[0], "maxItems": 2},
            lambda v, check=s[1]: isinstance(v, list) and len(v) <= 2 and all(map(check, v)),
        )
    )
    return leaf | lists | st.tuples(inner, inner).map(lambda pair: record(*pair))


def record(first: Any, second: Any) -> tuple[dict[str, Any], Callable[[Any], bool]]:
    """An object with one property it must have and one it may have."""
    shape = {"type": "object", "properties": {"k": first[0], "é": second[0]}, "required": ["k"]}

    def check(value: Any) -> bool:
        known = isinstance(value, dict) and "k" in value and set(value) <= {"k", "é"}
        return known and first[1](value["k"]) and ("é" not in value or second[1](value["é"]))

    return shape, check
