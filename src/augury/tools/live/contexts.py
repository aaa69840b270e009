"""Acceptance by context length, if the server counts it, since heads are trained on short texts."""

from __future__ import annotations

from typing import Any

from augury.tools.live.drafting import MANY
from augury.tools.live.window import Window


def context_facts(window: Window) -> dict[str, Any]:
    """Acceptance on the longest contexts against the shortest; the spread is 0 if it may be chance."""
    known = [(bound, drafting) for bound, drafting in window.by_context.items() if drafting.drafts >= MANY]
    if len(known) < 2:
        return {}
    short, long = known[0][1], known[-1][1]
    if not short.rate or long.rate is None or short.rate_interval is None or long.rate_interval is None:
        return {}
    certain = long.rate_interval[1] < short.rate_interval[0]
    beyond = known[-2][0]  # the last group holds the texts longer than this
    return {
        "context_spread": 1 - long.rate / short.rate if certain else 0.0,
        "context_beyond": beyond,
        "context_rate": long.rate,
        "context_short_rate": short.rate,
    }
