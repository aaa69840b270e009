"""An earlier check to compare with: `augury check --json > FILE`, then `augury check --baseline FILE`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from augury.config.errors import ConfigError
from augury.tools.live.drafting import MANY
from augury.tools.live.expectation import Expectation
from augury.tools.live.stretch import CHANGE
from augury.tools.live.window import Window
from augury.tools.shared.json_files import read_json


@dataclass(frozen=True, slots=True)
class PastFigures:
    """One model's figures in the earlier check."""

    when: str
    rate: tuple[float, float, float]  # the rate and its interval
    length: float
    k: int | None
    method: str | None


def read_past(path: Path, option: str = "--baseline") -> dict[str, PastFigures]:
    """The models of a stored check that have enough drafts to compare with, by name; a ConfigError if none has."""
    found = read_json(path, f"{option} {path}")
    models = found.get("models") if isinstance(found, dict) else None
    if not isinstance(models, list):
        raise ConfigError(f"{option} {path}: write it with `augury check URL --json > FILE`.")
    when = found.get("checked_at")
    told = [(model.get("model"), _past(model, when)) for model in models if isinstance(model, Mapping)]
    past = {name: one for name, one in told if isinstance(name, str) and one is not None}
    if not past:
        raise ConfigError(f"{option} {path}: that check saw fewer than {MANY} drafts, which says nothing.")
    return past


def _past(model: Mapping[str, Any], when: Any) -> PastFigures | None:
    window, expected = model.get("window"), model.get("expected")
    if not isinstance(window, Mapping):
        return None
    interval = window.get("acceptance_rate_interval")
    ends = interval if isinstance(interval, list) and len(interval) == 2 else [None, None]
    figures: list[Any] = [window.get(name) for name in ("acceptance_rate", "acceptance_length", "drafts")] + ends
    if not all(isinstance(one, (int, float)) and not isinstance(one, bool) for one in figures) or figures[2] < MANY:
        return None
    rate, length, _, low, high = map(float, figures)
    named = expected if isinstance(expected, Mapping) else {}
    method, k = named.get("method"), window.get("k")
    day = when if isinstance(when, str) and len(when) < 40 and when.isprintable() else "then"
    told = k if isinstance(k, int) else None, method if isinstance(method, str) else None
    return PastFigures(day, (rate, low, high), length, *told)


def past_facts(window: Window, expected: Expectation, past: PastFigures | None) -> dict[str, Any]:
    """The earlier figures and the relative change since, which is 0 if it may be chance."""
    part = window.drafting
    if past is None or part.drafts < MANY or part.rate is None or part.rate_interval is None or not past.rate[0]:
        return {}
    found: dict[str, Any] = {"past_when": past.when, "past_rate": past.rate[0], "past_length": past.length}
    now = expected.method if past.method and expected.method else past.method
    if window.k != past.k or now != past.method:
        return found | {"past_differs": f"{past.method or 'drafts'} with K={past.k or '?'}"}
    certain = part.rate_interval[1] < past.rate[1] or part.rate_interval[0] > past.rate[2]
    change = part.rate / past.rate[0] - 1
    return found | {"past_change": change if certain and abs(change) > CHANGE else 0.0}
