"""Requests that nobody should send: valid OpenAI requests, mutated where their grammar allows it."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any, NamedTuple

PATHS = ("/v1/completions", "/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize")
NUMBERS: tuple[Any, ...] = (
    0, -1, 1, 2, 7, 2**31 - 1, 2**31, 2**63, -(2**63) - 1, 10**400, 0.5, -0.0, 1e-300, 1e308, float("nan"),
    float("inf"), True, "1", "١٢", "1e9", [1], {"value": 1},
)  # fmt: skip
TEXTS: tuple[Any, ...] = (
    "", " ", "\x00", "\ud800", "\u202e\u200b", "é" * 60, "\U0001f600" * 30, "<eos>", "<|im_start|>", "\x1b[2J",
    "a" * 3000,
    "{{ 7 * 7 }}", "%s%n", "../../etc/passwd", "ﷺ" * 40, "\r\n\r\n", 3, None, ["x"], {"text": "x"},
)  # fmt: skip
FORMS: tuple[dict[str, Any], ...] = (
    {"regex": "[a-c]{1,8}"}, {"regex": "(a*)*b"}, {"regex": "(" * 40 + "a" + ")" * 40}, {"choice": ["a", "b"]},
    {"choice": []}, {"grammar": 'root ::= "a" root | "b"'}, {"grammar": "root ::= root"}, {"grammar": "start: /a+/"},
    {"json": {"type": "integer"}}, {"json": {"$ref": "#"}}, {"json": {"$ref": "#/nowhere"}}, {"json": True},
    {"json": {"enum": ["x"] * 50}}, {"json_object": True}, {"regex": "\\p{L}{0,9}", "choice": ["x"]},
)  # fmt: skip


class Body(NamedTuple):
    """One request."""

    path: str
    raw: bytes


def valid(dice: random.Random) -> tuple[str, dict[str, Any]]:
    """A request as a client would send it, small and short."""
    path = dice.choice(PATHS)
    if path == "/tokenize":
        return path, {"prompt": "some words", "add_special_tokens": True}
    if path == "/detokenize":
        return path, {"tokens": [65, 66, 67]}
    body: dict[str, Any] = {
        "max_tokens": dice.randint(1, 6), "temperature": dice.choice([0, 0.7, 1.3]), "seed": dice.randint(0, 9),
        "top_p": 0.9, "top_k": 5, "n": dice.choice([1, 1, 2]), "stream": dice.random() < 0.3, "stop": ["zz"],
        "presence_penalty": 0.1, "frequency_penalty": 0.1, "logit_bias": {"65": 1.0}, "ignore_eos": True,
        "min_tokens": 0, "bad_words": ["x"], "speculative": {"num_speculative_tokens": 2}, "user": "fuzz",
    }  # fmt: skip
    body = {name: value for name, value in body.items() if dice.random() < 0.5 or name == "max_tokens"}
    if dice.random() < 0.15:
        body["structured_outputs"] = dice.choice(FORMS)
    elif dice.random() < 0.1:
        schema = nested_schema(dice, dice.randint(0, 6))
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    if path == "/v1/completions":
        body["prompt"] = dice.choice(["ab", ["a", "b"], [65, 66], [[65], [66]]])
        body["logprobs"] = dice.choice([None, 1, 5])
    else:
        body["messages"] = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]
        body["logprobs"] = dice.choice([None, True])
    return path, {name: value for name, value in body.items() if value is not None}


def nested_schema(dice: random.Random, depth: int) -> Any:
    """A JSON schema, wide and deep at random; some of its words mean nothing."""
    if depth <= 0:
        return dice.choice([{"type": "string"}, {"type": ["null", "number"]}, {"const": 1}, {}, True, {"type": "odd"}])
    inner = nested_schema(dice, depth - 1)
    return dice.choice(
        [
            {"type": "object", "properties": {"a": inner, "ü": inner}, "required": ["a"]},
            {"type": "array", "items": inner, "minItems": dice.choice([0, 3, -1])},
            {"anyOf": [inner, inner]},
            {"allOf": [inner]},
            {"not": inner},
            {"$defs": {"d": inner}, "$ref": "#/$defs/d"},
            {"oneOf": []},
            {"type": "object", "patternProperties": {"^a+$": inner}},
            {"type": "string", "pattern": "(a|a)*$"},
        ]
    )


Mutation = Callable[[random.Random, dict[str, Any]], None]


def other_type(dice: random.Random, body: dict[str, Any]) -> None:
    """A field holds a value of another kind, or one at the edge of its own."""
    name = dice.choice(list(body))
    body[name] = dice.choice(NUMBERS + TEXTS)


def larger(dice: random.Random, body: dict[str, Any]) -> None:
    """A list, a text or an object has many more elements."""
    name = dice.choice(list(body))
    value, times = body[name], dice.choice([20, 200, 2000])
    if isinstance(value, (str, list)):
        body[name] = value * times
    elif isinstance(value, dict):
        body[name] = {f"{key}{i}": inner for i in range(times) for key, inner in value.items()}
    elif isinstance(value, (int, float)):
        body[name] = value * 10**times if isinstance(value, int) else value * 1e300


def deeper(dice: random.Random, body: dict[str, Any]) -> None:
    """A value is wrapped again and again."""
    name = dice.choice(list(body))
    for _ in range(dice.choice([1, 3, 60])):
        body[name] = [body[name]] if dice.random() < 0.5 else {"x": body[name]}


def unknown(dice: random.Random, body: dict[str, Any]) -> None:
    """Fields that nobody knows, or that are known by almost the same name."""
    for i in range(dice.choice([1, 5, 300])):
        body[dice.choice(["max_token", "Stream", "__proto__", "", "é", "n "]) + str(i or "")] = dice.choice(NUMBERS)


def less(dice: random.Random, body: dict[str, Any]) -> None:
    """A field is missing or null."""
    name = dice.choice(list(body))
    if dice.random() < 0.5 and len(body) > 1:
        del body[name]
    else:
        body[name] = None


def odd_message(dice: random.Random, body: dict[str, Any]) -> None:
    """A message says something unusual in an unusual shape."""
    parts: Any = dice.choice(
        [
            dice.choice(TEXTS),
            [{"type": "text", "text": dice.choice(TEXTS)}],
            [{"type": "image_url", "image_url": {}}],
            [{}],
            [None],
            {"type": "text"},
        ]
    )
    message = {"role": dice.choice(["user", "assistant", "tool", "root", "", 3]), "content": parts}
    body["messages" if "messages" in body else "prompt"] = [message] * dice.choice([1, 2, 40])


MUTATIONS: tuple[Mutation, ...] = (other_type, other_type, larger, deeper, unknown, less, odd_message)


def mutated(dice: random.Random) -> Body:
    """A valid request with some mutations, and now and then with its bytes damaged."""
    path, body = valid(dice)
    for _ in range(dice.choice([0, 1, 1, 2, 3])):
        dice.choice(MUTATIONS)(dice, body)
    raw = bytearray(json.dumps(body, ensure_ascii=dice.random() < 0.7).encode("utf-8", "surrogatepass"))
    if dice.random() < 0.1:
        for _ in range(dice.randint(1, 4)):
            raw[dice.randrange(len(raw))] = dice.randrange(256)
    if dice.random() < 0.03:
        del raw[dice.randrange(len(raw)) :]
    return Body(path, bytes(raw))
