"""Conditions as data: a small language over named facts, with three answers: yes, no, and unknown.

all: [...]   any: [...]   not: ...
method: eagle3                      one method, or a list of them
version: ">=0.9.1,<0.16"            bounds of the vLLM release
key_present: disable_by_batch_size  a key of speculative_config
key: {parallel_drafting: true}      a key and its value
problem: key-gone                   a problem found while reading the command
fact: k, more_than: {fact: heads}   is, in, contains, more_than, less_than, at_least, at_most, not_multiple_of
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from augury.config.read import KEYS
from augury.methods.registry import METHODS
from augury.tools.knowledge.fact_names import FACTS, PROBLEMS

Answer = bool | None
COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "is": lambda a, b: bool(a == b),
    "in": lambda a, b: a in b,
    "contains": lambda a, b: any(part in a for part in ([b] if isinstance(b, str) else b)),
    "more_than": lambda a, b: bool(a > b),
    "less_than": lambda a, b: bool(a < b),
    "at_least": lambda a, b: bool(a >= b),
    "at_most": lambda a, b: bool(a <= b),
    "not_multiple_of": lambda a, b: bool(b and a % b),
}
SINGLE = ("all", "any", "not", "method", "version", "key_present", "key", "problem")


@dataclass(slots=True)
class KnownFacts:
    """The facts, keys and problem against which a condition is tested."""

    facts: Mapping[str, Any] = field(default_factory=dict)
    keys: Mapping[str, Any] = field(default_factory=dict)
    problem: str | None = None  # the one being reported


def holds(condition: Mapping[str, Any], known: KnownFacts) -> Answer:
    """Whether a condition holds; None if a fact that it needs is unknown."""
    if "fact" in condition:
        return _compare(condition, known)
    [(word, operand)] = condition.items()
    if word in ("all", "any"):
        answers = [holds(inner, known) for inner in operand]
        decided = word == "any"
        if decided in answers:
            return decided
        return None if None in answers else not decided
    if word == "not":
        answer = holds(operand, known)
        return None if answer is None else not answer
    if word == "problem":
        return bool(known.problem == operand)
    if word == "version":
        release = known.facts.get("version")
        return None if release is None else _within(release, operand)
    if word == "key_present":
        return operand in known.keys
    if word == "key":
        return all(known.keys.get(name) == value for name, value in operand.items())
    method = known.facts.get("method")
    return None if method is None else method in ([operand] if isinstance(operand, str) else operand)


def _within(release: Any, bounds: str) -> bool:
    from packaging.specifiers import SpecifierSet  # imported here because it is slow and few commands need it

    return SpecifierSet(bounds).contains(release)


def _unreadable_bounds(bounds: Any) -> str | None:
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    try:
        return None if SpecifierSet(str(bounds)) else "version: no bounds"
    except InvalidSpecifier:
        return f"version bounds {bounds!r} are not understood"


def _compare(condition: Mapping[str, Any], known: KnownFacts) -> Answer:
    value = known.facts.get(condition["fact"])
    [(word, operand)] = [(word, operand) for word, operand in condition.items() if word != "fact"]
    if isinstance(operand, Mapping):
        operand = known.facts.get(operand["fact"])
    if value is None or operand is None:
        return None
    return COMPARISONS[word](value, operand)


def check_condition(condition: Any) -> str | None:
    """What is wrong with a condition as written; None if nothing is."""
    if not isinstance(condition, Mapping) or not condition:
        return f"a condition is a mapping, found {condition!r}"
    if "fact" in condition:
        return _check_comparison(condition)
    if len(condition) != 1 or next(iter(condition)) not in SINGLE:
        return f"{sorted(condition)} is no condition; there are {', '.join(SINGLE)} and fact"
    [(word, operand)] = condition.items()
    if word in ("all", "any"):
        return next(filter(None, map(check_condition, operand)), None) if operand else f"{word} of nothing"
    if word == "not":
        return check_condition(operand)
    return _check_single(word, operand)


def _check_single(word: str, operand: Any) -> str | None:
    known: Collection[str] = PROBLEMS if word == "problem" else METHODS if word == "method" else KEYS
    if word == "version":
        return _unreadable_bounds(operand)
    names = [operand] if isinstance(operand, str) else list(operand)
    wrong = [name for name in names if name not in known]
    return f"{word}: {wrong[0]!r} is unknown" if wrong else None


def _check_comparison(condition: Mapping[str, Any]) -> str | None:
    words = [word for word in condition if word != "fact"]
    if len(words) != 1 or words[0] not in COMPARISONS:
        return f"a comparison needs one of {', '.join(COMPARISONS)}, found {words}"
    operand = condition[words[0]]
    names = [condition["fact"], *([operand.get("fact")] if isinstance(operand, Mapping) else [])]
    wrong = [name for name in names if name not in FACTS]
    return f"fact {wrong[0]!r} is unknown" if wrong else None
