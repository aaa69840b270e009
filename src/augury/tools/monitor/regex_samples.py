"""Short texts that a regular expression matches, for the series of the unit tests."""

from __future__ import annotations

import re
from typing import Any

_PARSER: Any = re._parser  # type: ignore[attr-defined]
_LETTERS = "a0 -_/.:A"


def sample(pattern: str) -> str:
    """A text that the pattern should match as a whole; constructed without search, so the caller must verify it."""
    return _said(_PARSER.parse(pattern, re.DOTALL))


def _said(parsed: Any) -> str:
    return "".join(_one(str(kind), value) for kind, value in parsed)


def _one(kind: str, value: Any) -> str:
    if kind == "LITERAL":
        return chr(value)
    if kind in ("ANY", "NOT_LITERAL", "IN"):
        return _letter(kind, value)
    if kind in ("MAX_REPEAT", "MIN_REPEAT"):
        low, high, inner = value
        return _said(inner) * int(max(low, min(1, high)))
    if kind == "SUBPATTERN":
        return _said(value[-1])
    if kind == "BRANCH":
        return _said(value[1][0])
    return ""  # an anchor


def _letter(kind: str, value: Any) -> str:
    """A character that a class matches."""
    for letter in _LETTERS:
        if _within(kind, value, letter):
            return letter
    ranges = [part for name, part in value if str(name) in ("LITERAL", "RANGE")] if kind == "IN" else []
    return chr(ranges[0] if isinstance(ranges[0], int) else ranges[0][0]) if ranges else "a"


def _within(kind: str, value: Any, letter: str) -> bool:
    if kind == "ANY":
        return True
    if kind == "NOT_LITERAL":
        return bool(ord(letter) != value)
    inverted = str(value[0][0]) == "NEGATE"
    met = any(_meets(str(name), part, letter) for name, part in value[inverted:])
    return met != inverted


def _meets(name: str, part: Any, letter: str) -> bool:
    if name == "LITERAL":
        return bool(ord(letter) == part)
    if name == "RANGE":
        return bool(part[0] <= ord(letter) <= part[1])
    kind = str(part)  # CATEGORY_DIGIT, CATEGORY_NOT_WORD, ...
    met = (
        letter.isdigit()
        if "DIGIT" in kind
        else letter.isspace()
        if "SPACE" in kind
        else letter.isalnum() or letter == "_"
    )
    return met != ("NOT" in kind)
