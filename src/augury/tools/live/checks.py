"""The checks of a live server: each has a figure, what it is compared with, and a verdict from the knowledge."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from augury.methods.registry import LOOK_UPS
from augury.tools.live.expectation import YOURS, Expectation
from augury.tools.live.facts import live_facts
from augury.tools.live.load_checks import cache, lossless, prefix, queue, speed, speed_up
from augury.tools.live.past import PastFigures, past_facts
from augury.tools.live.stretch import settled
from augury.tools.live.verdict import Check as Check
from augury.tools.live.verdict import State, sane, verdict
from augury.tools.live.window import Window

ACCEPTANCE = ("acceptance rate", "acceptance length")
STOPPED = ("drafts-stopped", "drafts-none-now", "drafts-seldom")
WORST = ("fail", "warn", "unknown", "pass", "note")


@dataclass(frozen=True, slots=True)
class Judged:
    """One model's checks."""

    window: Window
    expected: Expectation
    facts: dict[str, Any]
    checks: list[Check]

    @property
    def verdict(self) -> State:
        """The worst check's state; "unknown" if nothing is wrong but no acceptance check has passed."""
        states = {check.state for check in self.checks}
        acceptance = {check.state for check in self.checks if check.name in ACCEPTANCE}
        if not states & {"fail", "warn"} and "pass" not in acceptance:
            return "unknown"
        return next(state for state in ("fail", "warn", "pass") if state in states)

    @property
    def wants_method(self) -> bool:
        """Whether acceptance is measured but cannot be judged because the method is unknown."""
        return self.verdict == "unknown" and "acceptance_rate" in self.facts and self.expected.method is None

    @property
    def worst(self) -> Check | None:
        """The first failed check, otherwise the first with a warning, otherwise None."""
        wrong = [check for check in self.checks if check.state in ("fail", "warn")]
        return min(wrong, key=lambda check: WORST.index(check.state), default=None)


def judge(window: Window, expected: Expectation, past: PastFigures | None = None) -> Judged:
    """Run every check that the figures allow, on the interval alone if it has enough drafts to settle them."""
    window = settled(window, expected)
    facts = live_facts(window, expected)
    facts |= past_facts(window, expected, past) if sane(facts) else {}
    found = [made for line in LINES if (made := line(window, expected, facts)) is not None]
    return Judged(window, expected, facts, found)


def _counters(window: Window, expected: Expectation, facts: Mapping[str, Any]) -> Check | None:
    """Missing or impossible counters, in which case nothing else is judged by them."""
    state, fix, entry = verdict(facts, "counter-missing", "counters-impossible")
    if not entry:
        return None
    missing = entry == "counter-missing"
    said = f"without {facts['missing_counters']}" if missing else str(facts["impossible"])
    return Check("counters", state, said, "all of them" if missing else "no more than was drafted", fix, entry)


def _drafts(window: Window, expected: Expectation, facts: Mapping[str, Any]) -> Check | None:
    if facts["counters_missing"]:
        return None
    state, fix, entry = verdict(facts, "no-counters", "no-drafts", *(STOPPED if "drafts_now" in facts else ()))
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
    return Check("drafts", state, said, "more than 0", fix, entry)


def _stopped(window: Window, facts: Mapping[str, Any], state: State, fix: str, entry: str) -> Check:
    """The drafting of the interval against that of before, which the totals since the start would hide."""
    count = facts["drafts_now"]
    share = f", {facts['drafted_share_now']:.0%} of" if count else " for"
    said = f"{count:,.0f} in {window.seconds:.3g} s{share} {facts['decoded_now']:,.0f} tokens"
    before = facts.get("drafted_share_earlier")
    return Check("drafts", state, said, "more than 0" if not before else f"before: {before:.0%} of tokens", fix, entry)


def _rate(window: Window, expected: Expectation, facts: Mapping[str, Any]) -> Check | None:
    drafting = window.drafting
    if drafting.rate is None or drafting.rate_interval is None or not sane(facts):
        return None
    low, high = drafting.rate_interval
    own_bar = expected.where == YOURS and expected.method is None  # then no method's bar applies
    state, fix, entry = verdict(facts, *(() if own_bar else ("rate-under-half",)), "rate-below-band")
    against = _band(expected.rate, expected, "your band" if expected.where == YOURS else "band")
    if expected.rate is None and state == "pass":
        state = "unknown"
    return Check("acceptance rate", state, f"{drafting.rate:.3f} ({low:.2f} to {high:.2f})", against, fix, entry)


def _length(window: Window, expected: Expectation, facts: Mapping[str, Any]) -> Check | None:
    drafting = window.drafting
    if drafting.length is None or drafting.length_interval is None or not sane(facts):
        return None
    low, high = drafting.length_interval
    state, fix, entry = verdict(facts, "length-one", "length-below-band")
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
    if first is None or not sane(facts):
        return None
    state, fix, entry = verdict(facts, "length-one", "first-position-low")  # zero acceptance is a fault of any method
    shown_only = expected.method in LOOK_UPS and state != "fail"
    against = "no bar for look-ups" if shown_only else "0.50"
    return Check("first position", "note" if shown_only else state, f"{first:.2f} accepted", against, fix, entry)


def _now(window: Window, expected: Expectation, facts: Mapping[str, Any]) -> Check | None:
    """The interval's acceptance against that since the start, if they differ."""
    if not facts.get("rate_change") or not sane(facts):
        return None
    state, fix, entry = verdict(facts, "acceptance-fell") if facts["rate_change"] < 0 else ("note", "", "")
    said = f"{facts['rate_now']:.2f} in the last {window.seconds:.3g} s"
    return Check("acceptance now", state, said, f"since the start {facts['rate_earlier']:.2f}", fix, entry)


def _since(window: Window, expected: Expectation, facts: Mapping[str, Any]) -> Check | None:
    """Acceptance against an earlier check's."""
    if "past_rate" not in facts:
        return None
    then = f"{facts['past_when']}: {facts['past_rate']:.2f}, {facts['past_length']:.2f} a step"
    said = f"{window.drafting.rate:.2f}, {window.drafting.length:.2f} a step"
    if "past_differs" in facts:
        return Check("baseline", "unknown", said, f"{then}, but {facts['past_differs']}")
    state, fix, entry = verdict(facts, "acceptance-fell-far-since", "acceptance-fell-since")
    return Check("baseline", state, said, then, fix, entry)


def _engines(window: Window, expected: Expectation, facts: Mapping[str, Any]) -> Check | None:
    if "engine_spread" not in facts or not sane(facts):
        return None
    state, fix, entry = verdict(facts, "engine-dead", "engine-apart")
    said = f"engine {facts['engine_apart']}: {facts['engine_rate']:.2f}, others {facts['engines_rate']:.2f}"
    return Check("engines", state, said if entry else f"{len(window.engines)} alike", "alike", fix, entry)


def _contexts(window: Window, expected: Expectation, facts: Mapping[str, Any]) -> Check | None:
    if "context_spread" not in facts or not sane(facts):
        return None
    state, fix, entry = verdict(facts, "acceptance-falls-with-context")
    said = f"{facts['context_rate']:.2f} beyond {facts['context_beyond']:,.0f} tokens"
    return Check("long texts", state, said, f"on short ones {facts['context_short_rate']:.2f}", fix, entry)


def _configuration(window: Window, expected: Expectation, facts: Mapping[str, Any]) -> Check | None:
    if not facts["config_differs"]:
        return None
    state, fix, entry = verdict(facts, "config-differs")
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
    state, fix, entry = verdict(facts, "position-cliff", "position-rate-low")
    useful = facts.get("useful_k", 0)
    if not useful:
        return None  # the first position says it all
    said = f"{useful} of {len(drafting.curve)} at 0.40 or more"
    if entry == "position-cliff":
        said = f"cliff at position {facts['cliff']}"
    return Check("later positions", state, said, "a smooth decay", fix, entry)


Line = Callable[[Window, Expectation, Mapping[str, Any]], Check | None]
LINES: tuple[Line, ...] = (
    _counters,
    _configuration,
    _drafts,
    _rate,
    _length,
    _first,
    _shape,
    _now,
    _since,
    _contexts,
    _engines,
    speed_up,
    lossless,
    queue,
    cache,
    prefix,
    speed,
)
