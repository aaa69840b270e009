"""The checks of a live server: each a figure, what it is held against, and a verdict out of the knowledge."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from augury.methods.registry import LOOK_UPS
from augury.tools.knowledge.base import knowledge
from augury.tools.knowledge.conditions import KnownFacts, holds
from augury.tools.live.expectation import YOURS, Expectation
from augury.tools.live.facts import live_facts, sentence
from augury.tools.live.past import Past, past_facts
from augury.tools.live.stretch import settled
from augury.tools.live.window import Window

State = Literal["pass", "warn", "fail", "unknown", "note"]
STATES: dict[str, State] = {"error": "fail", "warning": "warn", "note": "note"}
ACCEPTANCE = ("acceptance rate", "acceptance length")
STOPPED = ("drafts-stopped", "drafts-none-now", "drafts-seldom")
WORST = ("fail", "warn", "unknown", "pass", "note")


@dataclass(frozen=True, slots=True)
class Check:
    """One line of a check."""

    name: str
    state: State
    figure: str
    against: str = ""
    fix: str = ""  # what to do, where something is wrong
    entry: str = ""  # of the knowledge, which says more

    def record(self) -> dict[str, str]:
        """For programs."""
        told = asdict(self)
        return told | {"knowledge": told.pop("entry")}


@dataclass(frozen=True, slots=True)
class Judged:
    """One model's checks."""

    window: Window
    expected: Expectation
    facts: dict[str, Any]
    checks: list[Check]

    @property
    def verdict(self) -> State:
        """The worst of them; nothing is healthy as long as acceptance is not judged, whatever else is well."""
        states = {check.state for check in self.checks}
        acceptance = {check.state for check in self.checks if check.name in ACCEPTANCE}
        if not states & {"fail", "warn"} and "pass" not in acceptance:
            return "unknown"
        return next(state for state in ("fail", "warn", "pass") if state in states)

    @property
    def wants_method(self) -> bool:
        """Whether drafts flow and nobody said what they should be held against."""
        return self.verdict == "unknown" and "acceptance_rate" in self.facts and self.expected.method is None

    @property
    def worst(self) -> Check | None:
        """The first check that went wrong."""
        wrong = [check for check in self.checks if check.state in ("fail", "warn")]
        return min(wrong, key=lambda check: WORST.index(check.state), default=None)


def judge(window: Window, expected: Expectation, past: Past | None = None) -> Judged:
    """Every check that the figures allow, of the interval where that settles them."""
    window = settled(window, expected)
    facts = live_facts(window, expected)
    facts |= past_facts(window, expected, past) if _sane(facts) else {}
    found = [made for line in LINES if (made := line(window, expected, facts)) is not None]
    return Judged(window, expected, facts, found)


def _verdict(facts: Mapping[str, Any], *names: str) -> tuple[State, str, str]:
    """Pass, or what the first entry that holds says; unknown where a fact is missing for one."""
    entries = [knowledge("bands")[name] for name in names]
    answers = [(entry, holds(entry.condition, KnownFacts(facts))) for entry in entries]
    for entry, answer in answers:
        if answer:
            return STATES[entry.severity], sentence(entry.fix, facts), entry.id
    return ("unknown" if any(answer is None for _, answer in answers) else "pass"), "", ""


def _counters(window: Window, expected: Expectation, facts: Mapping[str, Any]) -> Check | None:
    """Counters that are not all there, or cannot be; nothing else is judged by them then."""
    state, fix, entry = _verdict(facts, "counter-missing", "counters-impossible")
    if not entry:
        return None
    missing = entry == "counter-missing"
    said = f"without {facts['missing_counters']}" if missing else str(facts["impossible"])
    return Check("counters", state, said, "all of them" if missing else "no more than was drafted", fix, entry)


def _sane(facts: Mapping[str, Any]) -> bool:
    return not facts["counters_missing"] and not facts["counters_impossible"]


def _drafts(window: Window, expected: Expectation, facts: Mapping[str, Any]) -> Check | None:
    if facts["counters_missing"]:
        return None
    state, fix, entry = _verdict(facts, "no-counters", "no-drafts", *(STOPPED if "drafts_now" in facts else ()))
    if not window.after.speculates:
        return Check("drafts", state, "no speculation counters", "four vllm:spec_decode_*", fix, entry)
    count = window.drafting.drafts
    if not count and not window.generated:
        return Check("drafts", "unknown", "no traffic since the start", "try --probe")
    if entry in STOPPED:
        return _stopped(window, facts, state, fix, entry)
    said = f"{count:,.0f} in {window.seconds:.3g} s"
    if share := facts.get("drafted_share"):
        said += f", {share:.0%} of tokens"
    if window.since_start:
        said = f"{count:,.0f} since start" + (f", {window.in_interval.drafts:,.0f} now" if window.seconds else "")
    return Check("drafts", state, said, "more than none", fix, entry)


def _stopped(window: Window, facts: Mapping[str, Any], state: State, fix: str, entry: str) -> Check:
    """What is drafted now, beside what was before: the totals of a day hide it."""
    count = facts["drafts_now"]
    share = f", {facts['drafted_share_now']:.0%} of" if count else ", for"
    said = f"{count:,.0f} in {window.seconds:.3g} s{share} {facts['decoded_now']:,.0f} tokens"
    before = facts.get("drafted_share_earlier")
    return Check("drafts", state, said, "more than none" if not before else f"before, {before:.0%} of", fix, entry)


def _rate(window: Window, expected: Expectation, facts: Mapping[str, Any]) -> Check | None:
    drafting = window.drafting
    if drafting.rate is None or drafting.rate_interval is None or not _sane(facts):
        return None
    low, high = drafting.rate_interval
    own_bar = expected.where == YOURS and expected.method is None  # then the bars of methods are not asked for
    state, fix, entry = _verdict(facts, *(() if own_bar else ("rate-under-half",)), "rate-below-band")
    against = _band(expected.rate, expected, "your band" if expected.where == YOURS else "band")
    if expected.rate is None and state == "pass":
        state = "unknown"
    return Check("acceptance rate", state, f"{drafting.rate:.3f} ({low:.2f} to {high:.2f})", against, fix, entry)


def _length(window: Window, expected: Expectation, facts: Mapping[str, Any]) -> Check | None:
    drafting = window.drafting
    if drafting.length is None or drafting.length_interval is None or not _sane(facts):
        return None
    low, high = drafting.length_interval
    state, fix, entry = _verdict(facts, "length-one", "length-below-band")
    if expected.length is None and state == "pass":
        state = "unknown"
    against = _band(expected.length, expected)
    return Check("acceptance length", state, f"{drafting.length:.2f} ({low:.2f} to {high:.2f})", against, fix, entry)


def _band(band: tuple[float, float] | None, expected: Expectation, whose: str = "band") -> str:
    if band is not None:
        return f"{whose} {band[0]:g} to {band[1]:g}"
    return "it has no band" if expected.method else "unknown: give --method"


def _first(window: Window, expected: Expectation, facts: Mapping[str, Any]) -> Check | None:
    first = window.drafting.first
    if first is None or not _sane(facts):
        return None
    state, fix, entry = _verdict(facts, "length-one", "first-position-low")  # nothing accepted is wrong by any method
    shown_only = expected.method in LOOK_UPS and state != "fail"
    against = "no bar for look-ups" if shown_only else "0.50"
    return Check("first position", "note" if shown_only else state, f"{first:.2f} accepted", against, fix, entry)


def _now(window: Window, expected: Expectation, facts: Mapping[str, Any]) -> Check | None:
    """The interval against the start, where they tell two stories."""
    if not facts.get("rate_change") or not _sane(facts):
        return None
    state, fix, entry = _verdict(facts, "acceptance-fell") if facts["rate_change"] < 0 else ("note", "", "")
    said = f"{facts['rate_now']:.2f} in the last {window.seconds:.3g} s"
    return Check("acceptance now", state, said, f"since the start {facts['rate_earlier']:.2f}", fix, entry)


def _since(window: Window, expected: Expectation, facts: Mapping[str, Any]) -> Check | None:
    """Against an earlier day."""
    if "past_rate" not in facts:
        return None
    then = f"{facts['past_when']}: {facts['past_rate']:.2f}, {facts['past_length']:.2f} a step"
    said = f"{window.drafting.rate:.2f}, {window.drafting.length:.2f} a step"
    if "past_differs" in facts:
        return Check("baseline", "unknown", said, f"{then}, but {facts['past_differs']}")
    state, fix, entry = _verdict(facts, "acceptance-fell-far-since", "acceptance-fell-since")
    return Check("baseline", state, said, then, fix, entry)


def _engines(window: Window, expected: Expectation, facts: Mapping[str, Any]) -> Check | None:
    if "engine_spread" not in facts or not _sane(facts):
        return None
    state, fix, entry = _verdict(facts, "engine-dead", "engine-apart")
    said = f"engine {facts['engine_apart']}: {facts['engine_rate']:.2f}, others {facts['engines_rate']:.2f}"
    return Check("engines", state, said if entry else f"{len(window.engines)} alike", "alike", fix, entry)


def _configuration(window: Window, expected: Expectation, facts: Mapping[str, Any]) -> Check | None:
    if not facts["config_differs"]:
        return None
    state, fix, entry = _verdict(facts, "config-differs")
    return Check("configuration", state, f"{facts['served_as']} on the server", facts["told_as"], fix, entry)


def _shape(window: Window, expected: Expectation, facts: Mapping[str, Any]) -> Check | None:
    drafting = window.drafting
    if len(drafting.marginal) < 2 or "acceptance_rate" not in facts:
        return None
    if drafting.curve is None:
        against = "drafts differ in length"
        return Check(
            "later positions", "unknown", f"{drafting.marginal[-1]:.2f} at the last", against, entry="divisor-trap"
        )
    state, fix, entry = _verdict(facts, "position-cliff", "position-rate-low")
    useful = facts.get("useful_k", 0)
    if not useful:
        return None  # the first position says it all
    said = f"{useful} of {len(drafting.curve)} at 0.40 or more"
    if entry == "position-cliff":
        said = f"cliff at position {facts['cliff']}"
    return Check("later positions", state, said, "a smooth decay", fix, entry)


def _speed_up(window: Window, expected: Expectation, facts: Mapping[str, Any]) -> Check | None:
    told = window.after.speed_up
    if told is None:
        return None
    if "speed_up" not in facts:
        return Check("speed-up", "unknown", f"{told:.2f} times, it says", "over its tokens a step")
    state, fix, entry = _verdict(facts, "below-plain")
    return Check("speed-up", state, f"{facts['speed_up']:.2f} times", "1, by its own estimate", fix, entry)


def _queue(window: Window, expected: Expectation, facts: Mapping[str, Any]) -> Check | None:
    if "waiting" not in facts or "running" not in facts:
        return None
    state, fix, entry = _verdict(facts, "queue-long", "batch-large")
    said = f"{facts['running']:.0f} running, {facts['waiting']:.0f} waiting"
    return Check("queue", state, said, "waiting under running", fix, entry)


def _cache(window: Window, expected: Expectation, facts: Mapping[str, Any]) -> Check | None:
    if "kv_usage" not in facts:
        return None
    state, fix, entry = (
        _verdict(facts, "preempting", "kv-nearly-full") if "preemptions" in facts else _verdict(facts, "kv-nearly-full")
    )
    said = f"{facts['kv_usage']:.0%} in use"
    if "preemptions" in facts:
        said += f", {facts['preemptions']:.0f} preempted"
    return Check("KV cache", state, said, "under 95%, 0 preempted", fix, entry)


def _prefix(window: Window, expected: Expectation, facts: Mapping[str, Any]) -> Check | None:
    if "prefix_hit_rate" not in facts:
        return None
    _, fix, entry = _verdict(facts, "prefix-never-hit")
    return Check("prefix cache", "note", f"{facts['prefix_hit_rate']:.0%} of prompt tokens hit", "", fix, entry)


def _lossless(window: Window, expected: Expectation, facts: Mapping[str, Any]) -> Check | None:
    if not facts.get("lossy"):
        return None
    state, fix, entry = _verdict(facts, "lossy-rule")
    return Check("rule", state, "may change what the model says", "a lossless rule", fix, entry)


def _speed(window: Window, expected: Expectation, facts: Mapping[str, Any]) -> Check | None:
    rate = window.per_second("generation_tokens")
    if window.idle or rate is None:
        return None
    said = f"{rate:,.0f} tok/s"
    if window.tokens_per_step_now and _sane(facts):
        said += f", {window.tokens_per_step_now:.2f} a step"
    shown = [text for name in ("tpot", "ttft") if (text := _latency(window, name))]
    return Check("speed", "note", said, "" if window.latencies_since_start else "; ".join(shown))


def _latency(window: Window, name: str) -> str:
    """The mean, which is exact, and the bound that 99 in 100 lie under: buckets tell no more."""
    mean, bound = window.latency(name), window.histograms[name].at_most(0.99) if name in window.histograms else None
    if mean is None or bound is None:
        return ""
    last = max(other for other in window.histograms[name].counts if math.isfinite(other))
    tail = f"over {1000 * last:,.4g}" if math.isinf(bound) else f"under {1000 * bound:,.4g}"
    return f"{name.upper()} mean {1000 * mean:,.3g} ms, p99 {tail}"


Line = Callable[[Window, Expectation, Mapping[str, Any]], Check | None]
LINES: tuple[Line, ...] = (
    _counters, _configuration, _drafts, _rate, _length, _first, _shape, _now, _since, _engines, _speed_up, _lossless,
    _queue, _cache, _prefix, _speed,
)  # fmt: skip
