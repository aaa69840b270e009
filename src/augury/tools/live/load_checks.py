"""Checks of a server's load: speed, queue and caches; and whether its acceptance rule is lossless."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from augury.tools.live.expectation import Expectation
from augury.tools.live.verdict import Check, sane, verdict
from augury.tools.live.window import Window
from augury.tools.shared.pulse import time_text


def speed_up(window: Window, expected: Expectation, facts: Mapping[str, Any]) -> Check | None:
    """The speed-up that the server measured or estimates; "unknown" if its tokens per step make it impossible."""
    told, interval = window.after.speed_up, window.after.speed_up_range
    if told is None:
        return None
    if "speed_up" not in facts:
        return Check("speed-up", "unknown", f"{told:.2f} times, as reported", "at most its tokens per step")
    state, fix, entry = verdict(facts, "below-plain")
    said, how = f"{facts['speed_up']:.2f} times", "1, by its own estimate"
    if interval is not None:
        said, how = f"{said} plain, 95 % interval {interval[0]:.2f} to {interval[1]:.2f}", "1, against plain passes"
    return Check("speed-up", state, said, how, fix, entry)


def queue(window: Window, expected: Expectation, facts: Mapping[str, Any]) -> Check | None:
    """Running and waiting requests."""
    if "waiting" not in facts or "running" not in facts:
        return None
    state, fix, entry = verdict(facts, "queue-long", "batch-large")
    said = f"{facts['running']:.0f} running, {facts['waiting']:.0f} waiting"
    return Check("queue", state, said, "waiting under running", fix, entry)


def cache(window: Window, expected: Expectation, facts: Mapping[str, Any]) -> Check | None:
    """KV cache usage and preemptions."""
    if "kv_usage" not in facts:
        return None
    state, fix, entry = (
        verdict(facts, "preempting", "kv-nearly-full") if "preemptions" in facts else verdict(facts, "kv-nearly-full")
    )
    said = f"{facts['kv_usage']:.0%} in use"
    if "preemptions" in facts:
        said += f", {facts['preemptions']:.0f} preempted"
    return Check("KV cache", state, said, "under 95%, 0 preempted", fix, entry)


def prefix(window: Window, expected: Expectation, facts: Mapping[str, Any]) -> Check | None:
    """The share of prompt tokens found in the prefix cache."""
    if "prefix_hit_rate" not in facts:
        return None
    _, fix, entry = verdict(facts, "prefix-never-hit")
    return Check("prefix cache", "note", f"{facts['prefix_hit_rate']:.0%} of prompt tokens hit", "", fix, entry)


def lossless(window: Window, expected: Expectation, facts: Mapping[str, Any]) -> Check | None:
    """Whether the acceptance rule may change the model's output; None if it is lossless or unknown."""
    if not facts.get("lossy"):
        return None
    state, fix, entry = verdict(facts, "lossy-rule")
    return Check("rule", state, "may change what the model says", "a lossless rule", fix, entry)


def speed(window: Window, expected: Expectation, facts: Mapping[str, Any]) -> Check | None:
    """Tokens per second and per step, with TPOT and TTFT."""
    rate = window.per_second("generation_tokens")
    if window.idle or rate is None:
        return None
    said = f"{rate:,.0f} tok/s"
    if window.tokens_per_step_now and sane(facts):
        said += f", {window.tokens_per_step_now:.2f} a step"
    shown = [text for name in ("tpot", "ttft") if (text := _latency(window, name))]
    return Check("speed", "note", said, "" if window.latencies_since_start else "; ".join(shown))


def _latency(window: Window, name: str) -> str:
    """The mean, which is exact, and the bucket bound above the p99, since buckets tell no more."""
    mean, bound = window.latency(name), window.histograms[name].at_most(0.99) if name in window.histograms else None
    if mean is None or bound is None:
        return ""
    last = max(other for other in window.histograms[name].counts if math.isfinite(other))
    tail = f"over {time_text(last)}" if math.isinf(bound) else f"under {time_text(bound)}"
    return f"{name.upper()} mean {time_text(mean)}, p99 {tail}"
