"""Sources that break parsers, and random ones, for the tests of grammars' processes."""

from __future__ import annotations

import json
import random
from typing import Any


def reference_chain(length: int) -> dict[str, Any]:
    """A schema whose definitions refer to each other in one long line."""
    step = {"type": "object", "required": ["a"], "additionalProperties": False, "description": "x" * 20}
    links = {f"d{i}": {**step, "properties": {"a": {"$ref": f"#/$defs/d{i + 1}"}}} for i in range(length)}
    return {"$defs": {**links, f"d{length}": {"type": "null"}}, "$ref": "#/$defs/d0"}


def lark_chain(length: int) -> str:
    """As many Lark rules, each of which names the next."""
    rules = "".join(f'r{i}: "a" r{i + 1} | "b"\n' for i in range(length))
    return f'start: r0\n{rules}r{length}: "c"\n'


def gbnf_chain(length: int) -> str:
    """The same in GBNF."""
    rules = "".join(f'r{i} ::= "a" r{i + 1} | "b"\n' for i in range(length))
    return f'root ::= r0\n{rules}r{length} ::= "c"\n'


def long_gbnf(size: int) -> str:
    """A grammar of so many bytes that takes minutes to read."""
    return gbnf_chain(size // 32).ljust(size)


def deep_schema(depth: int) -> str:
    """Objects within objects."""
    return '{"properties":{"a":' * depth + "{}" + "}}" * depth


def late_explosion(ways: int) -> str:
    """A grammar that compiles in a moment and whose parser never comes back once a long text of a's ends in a b."""
    many = " | ".join(f'"a" t{i}' for i in range(ways))
    return f's: "a" s | B | {many}\nstart: s\nB: /b{{60}}/\n' + "".join(f"t{i}: s\n" for i in range(ways))


def slow_masks(rules: int) -> str:
    """A grammar whose every mask takes long."""
    ways = " | ".join(f"x{i} s" for i in range(rules))
    return f'start: s\ns: {ways} | ""\n' + "".join(f'x{i}: "a" | "a" "a" | s "b"\n' for i in range(rules))


def some_source(dice: random.Random) -> dict[str, Any]:
    """A random thing to ask for, often nonsense."""
    kind = dice.choice(["json", "json", "grammar", "gbnf", "regex", "choice"])
    if kind == "json":
        schema = some_schema(dice, 3)
        schema["$defs"] = {name: some_schema(dice, 2) for name in "pqr"}
        return {"json": schema}
    if kind == "grammar":
        return {"grammar": "\n".join(["start: a", *(f"{name}: {some_rule(dice)}" for name in "abcd")])}
    if kind == "gbnf":
        return {"grammar": "\n".join(f"{name} ::= {some_rule(dice)}" for name in ("root", *"abcd"))}
    if kind == "regex":
        return {"regex": some_regex(dice, 3)}
    words = [
        "".join(dice.choices("ab\u00e9\u2603\\|[(", k=dice.randint(1, 9))) for _ in range(dice.choice([1, 5, 400]))
    ]
    return {"choice": words}


def some_schema(dice: random.Random, depth: int) -> dict[str, Any]:
    leaves: list[dict[str, Any]] = [
        {"type": dice.choice(["null", "boolean", "number", "integer", "string", "object", "array"])},
        {"enum": [dice.choice(["a", 1, None, 1.5, [1], {"k": 2}]) for _ in range(dice.choice([1, 3, 300]))]},
        {"type": "integer", "minimum": dice.randint(-99, 99), "maximum": dice.randint(-99, 10**9)},
        {"type": "number", "multipleOf": dice.choice([0.01, 7, 1e-9])},
        {"type": "string", "maxLength": dice.choice([0, 3, 9999]), "minLength": dice.choice([0, 2, 99])},
        {"type": "string", "pattern": some_regex(dice, 2)},
        {"type": "string", "format": dice.choice(["date-time", "email", "uuid", "ipv6", "nope"])},
        {"$ref": dice.choice(["#", "#/$defs/p", "#/$defs/q", "#/$defs/r", "#/nowhere"])},
    ]
    if depth == 0 or dice.random() < 0.3:
        return dice.choice(leaves)
    parts = [some_schema(dice, depth - 1) for _ in range(dice.randint(1, 4))]
    names = dice.sample(["a", "b", "c", "d", '\u00e9\n"', ""], len(parts))
    required = dice.sample(names, dice.randint(0, len(names)))
    return dice.choice(
        [
            {"type": "object", "properties": dict(zip(names, parts, strict=True)), "required": required},
            {"type": "object", "additionalProperties": parts[0], "minProperties": dice.randint(0, 3)},
            {"type": "array", "items": parts[0], "minItems": dice.randint(0, 3), "maxItems": dice.choice([0, 3, 999])},
            {"type": "array", "prefixItems": parts},
            {"anyOf": parts},
            {"oneOf": parts},
            {"allOf": parts},
            {"patternProperties": {some_regex(dice, 1): parts[0]}},
        ]
    )


def some_regex(dice: random.Random, depth: int) -> str:
    if depth == 0:
        return dice.choice(["a", "b", "[a-c]", "[^a]", r"\d", r"\w", r"\s", ".", "\u00e9", "(?i)x", "^", "$", r"\b"])
    inner, other = some_regex(dice, depth - 1), some_regex(dice, depth - 1)
    times = dice.choice(["?", "*", "+", "{2}", "{0,900}", "{3,}", "*?"])
    return dice.choice([inner + other, f"(?:{inner}|{other})", f"({inner}){times}", inner])


def some_rule(dice: random.Random) -> str:
    atoms = ['"a"', '"b"', '"ab"', "/[ab]+/", "[a-c]", '""', "a", "b", "c", "d", "A", "(a b)", "%json {}"]
    weights = [4, 4, 4, 2, 2, 1, 3, 3, 3, 3, 0.2, 1, 0.1]

    def one() -> str:
        word = dice.choices(atoms, weights)[0]
        return word + dice.choice(["", "", "", "?", "*", "+", "{2,5}"])

    return " | ".join(" ".join(one() for _ in range(dice.randint(1, 3))) for _ in range(dice.randint(1, 4)))


def size_of(schema: dict[str, Any]) -> int:
    """Bytes of a schema's text."""
    return len(json.dumps(schema))
