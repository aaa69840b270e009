"""The lines of `augury bench --methods`: which configurations stand for which method. Does not import torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from augury.config.errors import ConfigError
from augury.methods.registry import ALIASES, LOOK_UPS, METHODS
from augury.methods.spec import Method

PLAIN, ALL = "plain", "all"
DEPTH = 4  # tokens of a head's draft
LOOK_UP_DEPTH = 8
TREE = {"tree": {"max_nodes": 10, "top_k": 3}}


@dataclass(frozen=True, slots=True)
class MethodLine:
    """One line of the table: a method in one configuration."""

    name: str
    method: str | None  # None: plain decoding
    speculative: dict[str, Any] = field(default_factory=dict)  # without the path of a gate
    gate: str | None = None  # the kind of gate head it needs


def all_lines() -> list[MethodLine]:
    """Every line there is, plain decoding first."""
    saving = [_line(name, num_speculative_tokens=1) for name, card in METHODS.items() if card.saves_states]
    heads = [line for card in METHODS.values() for line in _with_gates(card)]
    return [MethodLine(PLAIN, None), *(_look_up(name) for name in LOOK_UPS), *heads, *saving]


def _look_up(name: str) -> MethodLine:
    """The line of a look-up, set to keep nothing between runs: repeated prompts would inflate its acceptance."""
    known = LOOK_UPS[name]
    tokens = {} if known.tokens is None else {"num_speculative_tokens": LOOK_UP_DEPTH}
    return _line(name, **tokens, **known.starts[0], **known.forgets)


def _with_gates(card: Method) -> Iterator[MethodLine]:
    for gate, recipe in card.gates.items():
        spec: dict[str, Any] = {"method": card.name, "num_speculative_tokens": DEPTH, **recipe.settings}
        if recipe.settings:
            yield MethodLine(f"{card.name} parallel", card.name, spec, gate)
            continue
        yield MethodLine(gate, card.name, spec, gate)
        yield MethodLine(f"{gate} tree", card.name, spec | TREE, gate)


def choose_lines(methods: list[str]) -> tuple[list[MethodLine], dict[str, str]]:
    """The lines of the methods asked for, plain decoding always included, and why others were left out."""
    wanted = [ALIASES.get(name, name) for name in methods]
    for name in wanted:
        if name != ALL and name not in METHODS:
            raise ConfigError(f"--methods {name}: unknown; write all, or choose from {', '.join(METHODS)}.")
        if name in REASONS:
            raise ConfigError(f"--methods {name}: {REASONS[name]}.")
    if ALL in wanted:
        return all_lines(), dict(REASONS)
    return [line for line in all_lines() if line.method is None or line.method in wanted], {}


def _line(method: str, **settings: Any) -> MethodLine:
    return MethodLine(method, method, {"method": method, **settings})


def _reasons() -> dict[str, str]:
    """Why each method without a line has none."""
    own = 'your own class; measure it with -sc \'{{"method": "{0}", ...}}\''
    other = "no gate is trained for it; measure a drafter of your own with -sc"
    lined = {line.method for line in all_lines()}
    return {
        name: (own if card.weights == "import path" else other).format(name)
        for name, card in METHODS.items()
        if name not in lined
    }


REASONS = _reasons()
