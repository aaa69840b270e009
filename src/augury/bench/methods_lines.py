"""The lines of `augury bench --methods`: which configurations stand for which method. No torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from augury.config.errors import ConfigError
from augury.methods.registry import ALIASES, METHODS

PLAIN, ALL = "plain", "all"
DEPTH = 4  # tokens of a head's draft
LOOKUP = {"num_speculative_tokens": 8, "prompt_lookup_min": 2, "prompt_lookup_max": 4}
TREE = {"tree": {"max_nodes": 10, "top_k": 3}}
CHAIN_AND_TREE = ("draft_model", "eagle", "eagle3", "mtp", "medusa", "mlp_speculator", "dflash")
REASONS = {
    "custom_class": 'your own class; measure it with -sc \'{"method": "custom_class", ...}\'',
    "dspark": "no gate is trained for it; measure a drafter of your own with -sc",
}


@dataclass(frozen=True, slots=True)
class MethodLine:
    """One line of the table: a method in one shape."""

    name: str
    method: str | None  # None: plain decoding
    speculative: dict[str, Any] = field(default_factory=dict)  # without the path of a gate
    gate: str | None = None  # the kind of gate head it needs


def all_lines() -> list[MethodLine]:
    """Every line there is, plain decoding first."""
    lines = [
        MethodLine(PLAIN, None),
        _line("ngram", **LOOKUP),
        _line("ngram_gpu", **LOOKUP),
        # Nothing is remembered from one run to the next: repeated prompts would look like luck.
        _line("suffix", suffix_decoding_max_cached_requests=0),
    ]
    for method in CHAIN_AND_TREE:
        spec: dict[str, Any] = {"method": method, "num_speculative_tokens": DEPTH}
        lines.append(MethodLine(method, method, spec, method))
        lines.append(MethodLine(f"{method} tree", method, spec | TREE, method))
        if method == "eagle3":
            lines.append(MethodLine("eagle3 parallel", method, spec | {"parallel_drafting": True}, "p-eagle"))
    lines.append(_line("extract_hidden_states", num_speculative_tokens=1))
    return lines


def choose_lines(methods: list[str]) -> tuple[list[MethodLine], dict[str, str]]:
    """The lines of the methods asked for, plain always among them, and why others were left out."""
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
