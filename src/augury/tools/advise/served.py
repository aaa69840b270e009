"""Traffic as a live server counts it: lengths, load, prefix hits, and the acceptance of what it drafts with now."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

from augury.config.errors import ConfigError
from augury.methods.registry import ALIASES, METHODS
from augury.tools.advise.accept import ENOUGH_DRAFTS
from augury.tools.advise.traffic import Traffic
from augury.tools.live.reading import Reading, readings
from augury.tools.live.scrape import scrape
from augury.tools.shared.http import Server
from augury.tools.shared.profile import make_profile

ENOUGH = 20  # finished requests needed to infer a mean length


def served(url: str, traffic: Traffic, method: str | None = None) -> tuple[Traffic, Mapping[str, Any] | None, Reading]:
    """Traffic, profile and reading from a server's counters since its start; lengths from a trace are kept.

    `method` is for servers that do not report theirs, as vLLM's do not.
    """
    name = ALIASES.get(method, method) if method else None
    if name is not None and name not in METHODS:
        raise ConfigError(f"--method={method!r} is unknown; there are {', '.join(METHODS)}.")
    server = Server(url)
    found, url = readings(scrape(server)), server.base  # a password in the address is not shown
    if not found:
        raise ConfigError(f"{url}: no vllm: series with a model_name; is it a vLLM or Augury server?")
    reading = max(found.values(), key=lambda one: one.counters.get("generation_tokens", 0.0))
    if name is not None and reading.method not in (None, name):
        raise ConfigError(f"--method={method!r}, and {url} says that it drafts with {reading.method}: leave it out.")
    reading = replace(reading, method=reading.method or name)
    told, drafts = traffic_of(reading, traffic, url), reading.counters.get("drafts", 0.0)
    if 0 < drafts < ENOUGH_DRAFTS:
        note = f"the server has drafted only {drafts:.0f} times; {ENOUGH_DRAFTS} are needed to judge its acceptance"
        return replace(told, notes=(*told.notes, f"{note}: not used")), None, reading
    return told, profile_of(reading, url), reading


def _at_once(reading: Reading) -> float | None:
    """Requests running or waiting, since those waiting would run if there were room; None if not reported."""
    running = reading.gauges.get("running")
    return None if running is None else running + reading.gauges.get("waiting", 0.0)


def traffic_of(reading: Reading, traffic: Traffic, url: str) -> Traffic:
    """Mean lengths of the finished requests, requests at once, and the share of prompts found in the prefix cache."""
    counted = reading.counters
    finished = counted.get("finished", 0.0)
    queries = counted.get("prefix_queries", 0.0)
    now = replace(
        traffic,
        running=_at_once(reading),
        cached=min(1.0, counted.get("prefix_hits", 0.0) / queries) if queries else traffic.cached,
    )
    if traffic.requests:
        return now
    if finished < ENOUGH:
        raise ConfigError(f"{url}: only {finished:.0f} requests have finished; wait for {ENOUGH}, or give --trace.")
    return replace(
        now,
        prompt_tokens=counted.get("prompt_tokens", 0.0) / finished,
        answer_tokens=max(1.0, counted.get("generation_tokens", 0.0) / finished),
        requests=int(finished),
        source=url,
    )


def loads_of(traffic: Traffic) -> tuple[int, ...]:
    """The observed load, half of it and twice it; empty if the server was idle."""
    now = round(traffic.running or 0)
    return tuple(sorted({max(1, now // 2), now, 2 * now})) if now else ()


def profile_of(reading: Reading, url: str) -> Mapping[str, Any] | None:
    """The server's own drafter as a profile; None if it has drafted nothing or its method is unknown."""
    drafts, accepted = reading.counters.get("drafts", 0.0), [int(count) for count in reading.accepted_at]
    falling = all(a >= b for a, b in pairwise([int(drafts), *accepted]))
    if not reading.speculates or reading.method not in METHODS or not drafts or not accepted or not falling:
        return None
    reached = [int(drafts), *accepted, 0]
    lengths = [now - then for now, then in pairwise(reached)]
    length = 1 + sum(accepted) / drafts
    conditions = {"model": reading.model, "server": url, "batch": reading.gauges.get("running")}
    profile = make_profile(str(reading.method), len(accepted), accepted, int(drafts), lengths, length, conditions)
    # An answer's first token comes from prefill; every other token is either an accepted draft or a step's own.
    steps = reading.counters.get("generation_tokens", 0.0) - sum(accepted) - reading.counters.get("finished", 0.0)
    return profile | {"replay": {"share_drafted": min(1.0, drafts / steps) if steps > 0 else 1.0}}
