"""The settings of `augury monitor init`, and the thresholds that follow from the method."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from augury.config.errors import ConfigError
from augury.methods.bands import Band
from augury.methods.registry import ALIASES, METHODS
from augury.methods.spec import Method
from augury.tools.knowledge.base import look_up
from augury.tools.monitor.matchers import Matcher, model_matcher, read_selector

FEWEST_DRAFTED = 1.0  # drafted tokens per second below which there is too little traffic to judge
FEWEST_DRAFTS = 0.33  # drafts per second of one engine, about 100 in a rate's five minutes; fewer are not judged
MODEL_FREE = ("none",)
LONG_DRAFTS = 63
RUNBOOK_URL = re.compile(r"https?://[^\s{}#]+")


def bound(entry: str, fact: str) -> float:
    """The number that a knowledge entry compares a fact with; it is defined only there."""
    for part in _parts(look_up(entry).condition):
        if part.get("fact") == fact:
            return float(next(value for key, value in part.items() if key != "fact"))
    raise AssertionError(f"{entry} says nothing of {fact}")


def speaks_of(entry: str, method: str) -> bool:
    """Whether a knowledge entry applies to a method."""
    return all(method in part["method"] for part in _parts(look_up(entry).condition) if "method" in part)


def lowest(card: Method, k: int) -> float:
    """The rate below which `augury check` fails a drafter with weights, at this K."""
    fault = card.band.at(k).fault_rate if card.band else None
    half = bound("rate-under-half", "acceptance_rate")
    return half if fault is None else min(half, round(fault, 2))


def _parts(condition: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield condition
    for value in condition.values():
        for inner in value if isinstance(value, list) else ():
            if isinstance(inner, dict):
                yield from _parts(inner)


@dataclass(frozen=True, slots=True)
class KitSettings:
    """Checked options; those that are None are left out of the files."""

    method: Method
    k: int
    matchers: tuple[Matcher, ...]  # of the selector
    model: Matcher | None
    datasource: str | None
    ours: bool
    min_acceptance: float | None
    first_beside: float | None  # a low rate counts only with a first position below this; None: any low rate
    first_alone: float | None  # a first position below this is a fault at any rate
    min_position: float | None
    baseline_tok_s: float | None
    runbook_url: str | None = None
    length_one: float = field(default_factory=lambda: bound("length-one", "acceptance_length"))
    apart: float = field(default_factory=lambda: bound("class-apart", "class_spread"))
    break_even: float = field(default_factory=lambda: bound("below-plain", "speed_up"))

    @property
    def model_free(self) -> bool:
        """Whether drafts come from text seen before, so that there may be none for a long time."""
        return self.method.weights in MODEL_FREE

    @property
    def model_based(self) -> bool:
        """Whether drafts come from weights, so that a low rate is a fault in itself."""
        return self.method.weights not in ("none", "import path")

    @property
    def names_targets(self) -> bool:
        """Whether the selector fixes a job or instance; other labels may be on any exporter."""
        return any(m.label in ("job", "instance") and m.op in ("=", "=~") and not m.takes("") for m in self.matchers)

    @property
    def long_length(self) -> float:
        """Tokens per step that count as good; the knowledge's figure, or less if K is too small for it."""
        band = self.band
        usual = band.usual if band and band.usual else 1 + self.k * 0.5
        return round(min(bound("signal-queue", "acceptance_length"), usual), 2)

    @property
    def band(self) -> Band | None:
        """The method's band at this K."""
        return self.method.band.at(self.k) if self.method.band else None

    @property
    def healthy(self) -> float | None:
        """The lower end of the method's band of acceptance rates."""
        return self.band.rate[0] if self.band and self.band.rate else None

    @property
    def model_labels(self) -> tuple[str, ...]:
        """The labels that identify a model, with the selector's, so that two kits in one Prometheus do not mix."""
        chosen = [matcher.label for matcher in self.matchers if matcher.label != "engine"]
        return tuple(dict.fromkeys(["job", "model_name", *chosen]))

    @property
    def engine_labels(self) -> tuple[str, ...]:
        """The labels that identify an engine."""
        return tuple(dict.fromkeys([*self.model_labels, "instance", "engine"]))

    def recorded(self, name: str, *more: str) -> str:
        """A recorded series with the selector's matchers, except those on `engine`, which series of models lack."""
        every = [*(m for m in self.matchers if m.label != "engine"), *([self.model] if self.model else []), *more]
        return f"augury:{name}{{{','.join(map(str, every))}}}" if every else f"augury:{name}"

    def selected(self, *more: str) -> str:
        """The selector in braces, with the model's matcher and any more."""
        every = [*map(str, self.matchers), *([str(self.model)] if self.model else []), *more]
        return "{" + ",".join(every) + "}" if every else ""

    def targets(self) -> str:
        """The selector for `up`, which has no labels for models and engines."""
        every = [str(matcher) for matcher in self.matchers if matcher.label not in ("model_name", "engine")]
        return "{" + ",".join(every) + "}" if every else ""

    def thresholds(self) -> dict[str, float | None]:
        """Every threshold of the alerts, by name; None if unused."""
        return {
            "min_acceptance": self.min_acceptance,
            "first_position_beside": self.first_beside,
            "first_position_alone": self.first_alone,
            "min_position_rate": self.min_position,
            "length_one": self.length_one,
            "good_length": self.long_length,
            "apart": self.apart,
            "baseline_tok_s": self.baseline_tok_s,
        }


def _check(card: Method, k: int, shares: dict[str, float | None], baseline_tok_s: float | None) -> None:
    """Refuse options that cannot be used in an alert."""
    if card.saves_states:
        raise ConfigError(f"--method {card.name} saves states and drafts nothing: there is nothing to watch.")
    if not 1 <= k <= LONG_DRAFTS:
        raise ConfigError(f"--k {k}: a draft has 1 to {LONG_DRAFTS} tokens.")
    for name, share in shares.items():
        if share is not None and not 0 < share < 1:
            raise ConfigError(f"{name} {share:g}: a share between 0 and 1.")
    if baseline_tok_s is not None and not 0 < baseline_tok_s < float("inf"):
        raise ConfigError(f"--baseline-tok-s {baseline_tok_s:g}: tokens a second, above 0.")


def settle(
    method: str,
    k: int,
    selector: str,
    model_name: str | None,
    datasource: str | None,
    kind: Literal["ours", "vllm"],
    min_acceptance: float | None,
    min_position: float | None,
    baseline_tok_s: float | None,
    runbook_url: str | None = None,
) -> KitSettings:
    """Check the command line's options and derive the settings from them."""
    card = METHODS.get(ALIASES.get(method, method))
    if card is None:
        raise ConfigError(f"--method {method}: unknown; one of {method_names()}.")
    _check(card, k, {"--min-acceptance": min_acceptance, "--min-position-rate": min_position}, baseline_tok_s)
    if runbook_url is not None and not RUNBOOK_URL.fullmatch(runbook_url):
        raise ConfigError(f"--runbook-url {runbook_url!r}: the http(s) address of RUNBOOK.md where you publish it.")
    first_beside = first_alone = None
    if card.weights not in ("none", "import path"):
        first_alone = bound("first-position-low", "first_position_rate")
        if min_acceptance is None and speaks_of("rate-under-half", card.name):
            min_acceptance = lowest(card, k)
            first_beside = bound("rate-under-half", "first_position_rate")  # a rate set by the user applies by itself
    if min_position is None and card.weights not in MODEL_FREE:
        min_position = bound("position-rate-low", "acceptance_rate")
    model = model_matcher(model_name) if model_name is not None else None
    return KitSettings(
        card,
        k,
        tuple(read_selector(selector)),
        model,
        datasource,
        kind == "ours",
        min_acceptance,
        first_beside,
        first_alone,
        min_position,
        baseline_tok_s,
        runbook_url,
    )


def method_names() -> str:
    """Every method that drafts, for help texts."""
    return ", ".join(name for name, card in METHODS.items() if not card.saves_states)
