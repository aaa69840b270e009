"""What tests of structured output share: forms, and whether a text has them by something other than the engine."""

import json
import os
import re
from pathlib import Path
from typing import Any

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
