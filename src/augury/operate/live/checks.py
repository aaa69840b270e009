"""The checks of a live server: each a figure, what it is held against, and a verdict out of the knowledge."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from augury.operate.conditions import World, holds
from augury.operate.knowledge_base import Entry, knowledge
from augury.operate.live.expectation import YOURS, Expectation
from augury.operate.live.facts import live_facts, sentence
from augury.operate.live.window import ENOUGH_DRAFTS, Window

State = Literal["pass", "warn", "fail", "unknown", "note"]
STATES: dict[str, State] = {"error": "fail", "warning": "warn", "note": "note"}
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
        return {
            "name": self.name, "state": self.state, "figure": self.figure, "against": self.against, "fix": self.fix,
            "knowledge": self.entry,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Judged:
    """One model's checks."""

    window: Window
    expected: Expectation
    facts: dict[str, Any]
    checks: list[Check]

    @property
    def verdict(self) -> State:
        """The worst of them; what is only shown does not count, nor does what cannot be judged beside what can."""
        states = {check.state for check in self.checks}
        return next(state for state in ("fail", "warn", "pass", "unknown", "note") if state in states)

    @property
    def worst(self) -> Check | None:
        """The first check that went wrong."""
        wrong = [check for check in self.checks if check.state in ("fail", "warn")]
        return min(wrong, key=lambda check: WORST.index(check.state), default=None)


def judge(window: Window, expected: Expectation) -> Judged:
    """Every check that the figures allow."""
    facts = live_facts(window, expected)
    found = [made for line in LINES if (made := line(window, expected, facts)) is not None]
    return Judged(window, expected, facts, found)


def _verdict(facts: Mapping[str, Any], *names: str) -> tuple[State, str, str]:
    """Pass, or what the first entry that holds says; unknown where a fact is missing for one."""
    answers: list[tuple[Entry, bool | None]] = [
        (knowledge()[n], holds(knowledge()[n].condition, World(facts))) for n in names
    ]
    for entry, answer in answers:
        if answer:
            return STATES[entry.severity], sentence(entry.fix, facts), entry.id
    return ("unknown" if any(answer is None for _, answer in answers) else "pass"), "", ""


def _drafts(window: Window, expected: Expectation, facts: Mapping[str, Any]) -> Check:
    state, fix, entry = _verdict(facts, "no-counters", "no-drafts")
    if not window.after.speculates:
        return Check("drafts", state, "no speculation counters", "four vllm:spec_decode_*", fix, entry)
    count = window.drafting.drafts
    if not count and not window.generated:
        return Check("drafts", "unknown", "no traffic since the start", "try --probe")
    said = f"{count:,.0f} in {window.seconds:.3g} s"
    if share := facts.get("drafted_share"):
        said += f", {share:.0%} of tokens"
    if window.since_start:
        said = f"{count:,.0f} since start" + (f", {window.in_interval.drafts:,.0f} now" if window.seconds else "")
    return Check("drafts", state, said, "more than none", fix, entry)


def _rate(window: Window, expected: Expectation, facts: Mapping[str, Any]) -> Check | None:
    drafting = window.drafting
    if drafting.rate is None or drafting.rate_interval is None:
        return None
    low, high = drafting.rate_interval
    state, fix, entry = _verdict(facts, "rate-under-half", "rate-below-band")
    against = _band(expected.rate, expected, "your band" if expected.where == YOURS else "band")
    if expected.rate is None and state == "pass":
        state = "unknown"
    return Check("acceptance rate", state, f"{drafting.rate:.3f} ({low:.2f} to {high:.2f})", against, fix, entry)


def _length(window: Window, expected: Expectation, facts: Mapping[str, Any]) -> Check | None:
    drafting = window.drafting
    if drafting.length is None or drafting.length_interval is None:
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
    if first is None:
        return None
    state, fix, entry = _verdict(facts, "first-position-low")
    look_up = expected.method in ("ngram", "ngram_gpu", "suffix")
    against = "no bar for look-ups" if look_up else "0.50"
    return Check("first position", "note" if look_up else state, f"{first:.2f} accepted", against, fix, entry)


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
    if window.tokens_per_step:
        said += f", {window.tokens_per_step:.2f} a step"
    waits = [(name.upper(), window.latency(name, 0.5)) for name in ("tpot", "ttft")]
    shown = [f"{name} {1000 * value:,.0f} ms" for name, value in waits if value is not None]
    return Check("speed", "note", said, "" if window.latencies_since_start else ", ".join(shown))


Line = Callable[[Window, Expectation, Mapping[str, Any]], Check | None]
LINES: tuple[Line, ...] = (
    _drafts, _rate, _length, _first, _shape, _speed_up, _lossless, _queue, _cache, _prefix, _speed,
)  # fmt: skip


def remarks(judged: Judged) -> list[str]:
    """What a reader must know of the figures."""
    window, said = judged.window, []
    if window.restarted:
        said.append(
            "counters fell during the interval: the server was started anew, or a balancer answered for two of them; "
            "figures are since the start"
        )
    elif window.idle:
        said.append(f"no traffic in the interval ({window.seconds:.3g} s); figures are since the start")
    elif window.since_start and window.seconds and window.drafting.drafts:
        said.append(f"fewer than {ENOUGH_DRAFTS} drafts in the interval; acceptance is since the start")
    if window.drafting.drafts and "acceptance_rate" not in judged.facts:
        said.append(f"only {window.drafting.drafts:.0f} drafts so far; too few to judge")
    if window.after.speculates and not window.after.accepted_at:
        said.append("the counters by position are missing, so the shape of acceptance cannot be judged")
    if window.drafting.drafts and judged.expected.where and judged.expected.where != YOURS:
        said.append(f"band of {judged.expected.method}: {judged.expected.where}")
    if window.drafting.varies and window.drafting.fair is None:
        said.append("drafts differ in length, so late positions look worse than they are (vLLM divides by all drafts)")
    return said
