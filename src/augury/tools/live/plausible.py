"""Detects impossible counters: more tokens accepted than drafted."""

from __future__ import annotations

from augury.tools.live.drafting import Drafting
from augury.tools.live.window import Window

SLACK = 0.02  # a scrape is not a snapshot: steps run on while counters are read one after another


def impossible(window: Window) -> str | None:
    """Which counters are impossible, in words; None if none is."""
    running, k = window.after.gauges.get("running", 0.0), window.k or 1
    for drafting, when in ((window.whole, "since the start"), (window.in_interval, "in the interval")):
        if said := _of(drafting, 2 * running, k):
            return f"{said} {when}"
    return None


def _of(drafting: Drafting, steps: float, k: int) -> str | None:
    if drafting.accepted > (1 + SLACK) * drafting.drafted + steps * (k + 1):
        return f"{drafting.accepted:,.0f} tokens accepted of {drafting.drafted:,.0f} drafted"
    for position, count in enumerate(drafting.accepted_at):
        if count > (1 + SLACK) * drafting.drafts + steps:
            return f"{count:,.0f} accepted at position {position} in {drafting.drafts:,.0f} drafts"
    return None
