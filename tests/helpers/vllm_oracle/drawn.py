"""Configurations drawn at random: several keys at once, good and bad, which the crossed cases never put together."""

from __future__ import annotations

from random import Random
from typing import Any

from vllm_oracle.cases import BASES, BY_MODEL, METHODS, VALUES, Case, K
from vllm_oracle.checkpoints import DRAFTERS, TARGETS

WILD: tuple[Any, ...] = (None, True, False, 0, 1, -1, 2.0, 0.5, "", "auto", "2", [], {}, [[1, 4, 2], [5, 9, 0]])
COUNTS = (None, 0, 1, 2, 3, 4, 5, 7, 8, 16, "2", 2.0)


def drawn(count: int, seed: int) -> list[Case]:
    """As many cases, the same for the same seed."""
    dice = Random(seed)
    return [_one(dice, f"drawn/{seed}/{i}") for i in range(count)]


def _one(dice: Random, name: str) -> Case:
    given, target = dice.choice(list(BASES.values()))
    given = dict(given)
    if dice.random() < 0.3:
        given, target = _unmatched(dice)
    for key in dice.sample(sorted(VALUES), dice.choice((0, 1, 1, 2, 2, 3, 4))):
        given[key] = dice.choice(VALUES[key]) if dice.random() < 0.75 else dice.choice(WILD)
    if dice.random() < 0.3:
        given[K] = dice.choice(COUNTS)
    if given.get(K, 0) is None:
        del given[K]
    return Case(name, given, target, dice.choice((None, None, 1, 2, 4)), dice.choice((None, None, 256, 1024)))


def _unmatched(dice: Random) -> tuple[dict[str, Any], str]:
    """Any method with any checkpoint on any target."""
    given: dict[str, Any] = {K: dice.choice((1, 2, 3))}
    if dice.random() < 0.8:
        given["method"] = dice.choice(METHODS)
    if given.get("method") in BY_MODEL or dice.random() < 0.5:
        given["model"] = f"@{dice.choice(sorted(DRAFTERS))}"
    return given, f"@{dice.choice(sorted(TARGETS))}"
