"""Facts from a live server, keyed by the names of fact_names.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from augury.tools.knowledge.base import Entry
from augury.tools.live.contexts import context_facts
from augury.tools.live.drafting import MANY, Drafting
from augury.tools.live.engines import engine_facts
from augury.tools.live.expectation import Expectation
from augury.tools.live.plausible import impossible
from augury.tools.live.reading import ACCEPTED_AT, Reading
from augury.tools.live.stretch import CHANGE, rate_change
from augury.tools.live.window import Window, whole

GROWS = 0.2  # share of the queue, and at least one request
KV_CLIMBS = 0.05
BELIEVED = 1.05


def live_facts(window: Window, expected: Expectation) -> dict[str, Any]:
    """Facts of one model; unknown ones are left out."""
    drafting, after = window.drafting, window.after
    found: dict[str, Any] = {
        "counters_present": after.speculates or bool(after.missing),
        "method": expected.method,
        "k": expected.k,
        "lossy": after.lossy,
        "generated": window.generated,
        "running": after.gauges.get("running"),
        "waiting": after.gauges.get("waiting"),
        "kv_usage": after.gauges.get("kv_usage"),
        "prefix_hit_rate": window.hit_rate,
        "prefix_queries": after.counters.get("prefix_queries"),
        "speed_up": _believable(window),
        "preemptions": window.counted.get("preemptions") if window.seconds else None,
        "length_floor": expected.length_floor,
    }
    found |= _counters(window) | _disagreements(window, expected) | _drafting_now(window)
    if after.speculates:
        found |= {"speculates": True, "drafts": drafting.drafts}
    sane = not found["counters_missing"] and not found["counters_impossible"]
    if sane and drafting.drafts >= MANY and drafting.rate_interval and drafting.length_interval:
        found |= _acceptance(drafting, expected, drafting.rate_interval[1], drafting.length_interval[1])
    if window.generated and sane:
        found["drafted_share"] = min(1.0, (drafting.drafts + drafting.accepted) / window.generated)
    return {name: value for name, value in found.items() if value is not None}


def _acceptance(drafting: Drafting, expected: Expectation, rate: float, length: float) -> dict[str, Any]:
    """Acceptance and the band it should be in; `rate` and `length` are the upper ends of its intervals."""
    return {
        "acceptance_rate": drafting.rate,
        "acceptance_length": drafting.length,
        "rate_at_most": rate,
        "length_at_most": length,
        "first_position_rate": drafting.first,
        "cliff": drafting.cliff(drafting.curve),
        "cliff_over_all": drafting.cliff(drafting.marginal) if drafting.curve is None else None,
        "useful_k": drafting.useful,
        "varying_lengths": drafting.varies,
        "fault_rate": expected.fault_rate,
        "band_rate_low": expected.rate[0] if expected.rate else None,
        "band_length_low": expected.length[0] if expected.length else None,
    }


def _counters(window: Window) -> dict[str, Any]:
    """Facts on whether the counters are complete and possible."""
    gone = [name for name in window.after.missing if name != ACCEPTED_AT]  # rates can be computed without that one
    fault = impossible(window)
    return {
        "counters_missing": len(gone),
        "missing_counters": ", ".join(gone) or None,
        "counters_impossible": fault is not None,
        "impossible": fault,
    }


def _drafting_now(window: Window) -> dict[str, Any]:
    """Drafts and tokens of the interval alone, because an old total hides that drafting has stopped."""
    earlier, tokens = window.earlier, window.counted.get("generation_tokens")
    if earlier is None or not window.seconds or tokens is None or not window.after.speculates:
        return {}
    begun = window.histograms["ttft"].count if "ttft" in window.histograms and not window.latencies_since_start else 0.0
    part, before = window.in_interval, whole(earlier)
    decoded, ever = max(0.0, tokens - begun), earlier.counters.get("generation_tokens", 0.0)
    return {
        "drafts_now": part.drafts,
        "decoded_now": decoded,
        "drafted_share_now": min(1.0, (part.drafts + part.accepted) / decoded) if decoded else None,
        "drafted_share_earlier": min(1.0, (before.drafts + before.accepted) / ever) if ever else None,
        "scheduled_off": window.after.k_now == 0,
    }


def _disagreements(window: Window, expected: Expectation) -> dict[str, Any]:
    """The interval against the start, one engine against the others, the server against its stated configuration."""
    change = rate_change(window)
    served, told = expected.told or (None, None)
    return {
        "rate_change": change,
        "rate_earlier": window.whole.rate if change else None,
        "rate_now": window.in_interval.rate if change else None,
        **engine_facts(window),
        **context_facts(window),
        "config_differs": expected.told is not None,
        "served_as": served,
        "told_as": told,
    }


def _believable(window: Window) -> float | None:
    """The server's own estimate of its speed-up, unless it exceeds what its tokens per step allow."""
    told, length = window.after.speed_up, window.drafting.length
    return told if told is not None and length is not None and told <= BELIEVED * length else None


def trend_facts(trail: Sequence[Reading], window: Window) -> dict[str, Any]:
    """Facts on what rises or falls over several readings."""
    found: dict[str, Any] = {}
    waiting = [reading.gauges.get("waiting", 0.0) for reading in trail]
    usage = [reading.gauges.get("kv_usage", 0.0) for reading in trail]
    if (change := rise(waiting)) is not None:
        found["queue_growing"] = change > max(1.0, GROWS * max(waiting))
    if (change := rise(usage)) is not None:
        found["kv_usage_rising"] = change > KV_CLIMBS
    if window.seconds and "preemptions" in window.counted:
        found["preemptions_rising"] = window.counted["preemptions"] > 0
    return found | _against_earlier(window)


def _against_earlier(window: Window) -> dict[str, Any]:
    """Acceptance in the interval against everything before it; empty if there is too little to compare with."""
    part, after = window.in_interval, window.after
    drafted = after.counters.get("drafted", 0.0) - part.drafted
    accepted = after.counters.get("accepted", 0.0) - part.accepted
    if window.since_start or part.rate is None or part.rate_interval is None or drafted < 10 * part.drafted:
        return {}
    before = accepted / drafted
    low, high = part.rate_interval
    return {
        "acceptance_falling": high < before and part.rate < (1 - CHANGE) * before,
        "acceptance_rising": low > before and part.rate > (1 + CHANGE) * before,
    }


def rise(values: Sequence[float]) -> float | None:
    """By how much the mean of the last third exceeds that of the first; None with fewer than three values."""
    third = len(values) // 3
    if not third:
        return None
    return sum(values[-third:]) / third - sum(values[:third]) / third


class _Said(dict[str, Any]):
    """Facts for filling sentences; an unknown one becomes a question mark."""

    def __missing__(self, name: str) -> str:
        return "?"


def spoken(facts: Mapping[str, Any]) -> dict[str, str]:
    """Facts as text for sentences: shares with two decimals, counts as whole numbers."""
    return _Said({name: _word(value) for name, value in facts.items()})


def _word(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.0f}" if value.is_integer() and value not in (0.0, 1.0) else f"{value:.2f}"
    return str(value)


def sentence(text: str, facts: Mapping[str, Any]) -> str:
    """A sentence of the knowledge, filled in."""
    return text.format_map(spoken(facts))


def lines(entry: Entry, facts: Mapping[str, Any]) -> tuple[str, str, str]:
    """Message, reason and fix of an entry, filled in."""
    return sentence(entry.message, facts), sentence(entry.why, facts), sentence(entry.fix, facts)
