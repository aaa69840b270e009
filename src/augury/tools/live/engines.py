"""Compares the engines of one model, to find one whose acceptance is far below the others'."""

from __future__ import annotations

from typing import Any

from augury.tools.live.drafting import MANY, Drafting
from augury.tools.live.window import Window

SILENT = 200  # tokens without a single draft while other engines draft
DRAFTS_OFTEN = 0.1  # drafts per token of the other engines


def engine_facts(window: Window) -> dict[str, Any]:
    """The engine with the lowest acceptance and the share by which it is below the others'; 0 if it may be chance."""
    found: dict[str, Any] = {}
    for name in window.engines:
        spread, own, others = _spread(name, window.engines)
        if spread is not None and spread >= found.get("engine_spread", 0.0):
            found = {"engine_spread": spread, "engine_apart": name, "engine_rate": own, "engines_rate": others}
    return found


def _spread(name: str, engines: dict[str, tuple[Drafting, float]]) -> tuple[float | None, float, float]:
    own, tokens = engines[name]
    rest = [drafting for other, (drafting, _) in engines.items() if other != name]
    others = sum(rest, Drafting())
    if others.drafts < MANY or not others.rate or others.rate_interval is None:
        return None, 0.0, 0.0
    if not own.drafts:
        their_tokens = sum(tokens for other, (_, tokens) in engines.items() if other != name)
        silent = tokens >= SILENT and others.drafts >= DRAFTS_OFTEN * their_tokens
        return (1.0 if silent else None), 0.0, others.rate
    if own.drafts < MANY or own.rate is None or own.rate_interval is None:
        return None, 0.0, 0.0
    certain = own.rate_interval[1] < others.rate_interval[0]
    return (1 - own.rate / others.rate if certain else 0.0), own.rate, others.rate
