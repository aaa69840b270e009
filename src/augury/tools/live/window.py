"""Two readings of one model and the difference between them: rates per second, acceptance, latencies."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

from augury.tools.live.buckets import Buckets
from augury.tools.live.drafting import Drafting
from augury.tools.live.reading import DRAFTING, Reading

ENOUGH_DRAFTS = 100  # in an interval; with fewer, everything since the start is judged unless the interval settles it


@dataclass(frozen=True, slots=True)
class Window:
    """The difference between two readings."""

    after: Reading
    seconds: float  # between the two; 0 if there is only one
    counted: dict[str, float]  # in the interval, or since the start without an earlier reading
    drafting: Drafting  # of the interval, or since the start: see since_start
    since_start: bool
    restarted: bool = False  # a counter fell in between
    histograms: dict[str, Buckets] = field(default_factory=dict)
    latencies_since_start: bool = False
    in_interval: Drafting = field(default_factory=Drafting)
    whole: Drafting = field(default_factory=Drafting)  # since the start, without probes
    traffic: float | None = None  # tokens generated for traffic since the start, if the server reports it
    probes: int = 0  # sent in the interval, which then shows their drafts
    earlier: Reading | None = None  # the first of the two readings, unless the server restarted

    def per_second(self, counter: str) -> float | None:
        """A counter's rate per second; None without an interval."""
        if not self.seconds or counter not in self.counted:
            return None
        return self.counted[counter] / self.seconds

    @property
    def generated(self) -> float | None:
        """Tokens generated in the stretch over which drafts are judged."""
        if self.since_start:
            return self.traffic
        return self.counted.get("generation_tokens")

    @property
    def idle(self) -> bool:
        """Whether there is an interval and nothing was generated in it."""
        return bool(self.seconds) and not self.counted.get("generation_tokens")

    def by_interval(self) -> Window:
        """The same window, with the drafts judged over the interval alone."""
        return replace(self, drafting=self.in_interval, since_start=False)

    @property
    def engines(self) -> dict[str, tuple[Drafting, float]]:
        """Each engine's drafting and tokens in the judged stretch; empty if there is only one engine."""
        found = {}
        for name, counts in self.after.by_engine.items():
            old = self.earlier.by_engine.get(name, {}) if self.earlier and not self.since_start else {}
            new = {figure: max(0.0, value - old.get(figure, 0.0)) for figure, value in counts.items()}
            drafts, drafted, accepted = (new.get(figure, 0.0) for figure in DRAFTING)
            found[name] = Drafting(drafts, drafted, accepted), new.get("generation_tokens", 0.0)
        return found

    @property
    def by_context(self) -> dict[float, Drafting]:
        """Drafting by context length, in the judged stretch."""
        old = self.earlier.by_context if self.earlier and not self.since_start else {}
        return {bound: drafting - old.get(bound, Drafting()) for bound, drafting in self.after.by_context.items()}

    @property
    def tokens_per_step(self) -> float | None:
        """Tokens per request and step, one plus the accepted ones, also counting steps without a draft."""
        return _per_step(self.generated, self.drafting.accepted)

    @property
    def tokens_per_step_now(self) -> float | None:
        """Tokens per request and step in the interval, whichever stretch is judged."""
        return _per_step(self.counted.get("generation_tokens"), self.in_interval.accepted) if self.seconds else None

    @property
    def hit_rate(self) -> float | None:
        """The share of prompt tokens found in the prefix cache; since the start if the interval looked none up."""
        for counts in (self.counted, self.after.counters):
            if counts.get("prefix_queries"):
                return counts.get("prefix_hits", 0.0) / counts["prefix_queries"]
        return None

    @property
    def k(self) -> int | None:
        """The number of draft positions that the server exports; None if it exports none."""
        return len(self.after.accepted_at) or None

    def latency(self, name: str) -> float | None:
        """The mean of a latency in seconds; None if it is unknown."""
        return self.histograms[name].mean if name in self.histograms else None

    def record(self) -> dict[str, Any]:
        """The window as JSON."""
        rates = ("drafts", "drafted", "accepted", "generation_tokens", "prompt_tokens", "preemptions")
        return {
            "model": self.after.model,
            "engines": self.after.engines,
            "seconds": self.seconds,
            "restarted": self.restarted,
            "idle": self.idle,
            "judged_by": "since start" if self.since_start else "interval",
            **self.drafting.record(),
            "generated_tokens": self.generated,
            "tokens_per_step": self.tokens_per_step,
            "per_second": {name: self.per_second(name) for name in rates},
            **{name: self.after.gauges.get(name) for name in ("running", "waiting", "kv_usage")},
            "prefix_hit_rate": self.hit_rate,
            "preemptions": self.counted.get("preemptions"),
            "interval": self.in_interval.record() if self.seconds else None,
            "since_start": self.whole.record(),
            "probes": self.probes,
            "by_engine": {name: drafting.record() for name, (drafting, _) in self.engines.items()},
            "by_context": [
                {"up_to_tokens": _finite(bound), **drafting.record()} for bound, drafting in self.by_context.items()
            ],
            "latency_seconds": self._latencies(),
            "latencies_since_start": self.latencies_since_start,
            "method": self.after.method,
            "k": self.k,
            "k_now": self.after.k_now,
            "lossy": self.after.lossy,
            "speed_up": self.after.speed_up,
        }

    def _latencies(self) -> dict[str, dict[str, Any]]:
        return {
            name: {
                "mean": found.mean,
                "p50": found.quantile(0.5),
                "p99": found.quantile(0.99),
                "p99_at_most": _finite(found.at_most(0.99)),
                "count": found.count,
            }
            for name, found in self.histograms.items()
        }


def window(before: Reading | None, after: Reading, probes: int = 0) -> Window:
    """The difference between two readings; after a restart in between, the figures since that restart.

    If `probes` were sent in between, the interval shows their drafts, and the figures since the start exclude them: our
    server counts probes separately; for other servers, the earlier reading is used.
    """
    restarted = before is not None and _fell(before, after)
    earlier = None if restarted else before
    apart = earlier is not None and probes > 0 and after.probed.drafts == earlier.probed.drafts
    last = earlier if earlier is not None and apart else after
    ever, tokens = whole(last), last.counters.get("generation_tokens")
    part = (
        (counted_drafts(after) - counted_drafts(earlier) if probes else ever - whole(earlier))
        if earlier
        else Drafting()
    )
    since_start = earlier is None or (part.drafts < ENOUGH_DRAFTS and ever.drafts > part.drafts)
    counted = dict(after.counters)
    if earlier is not None:
        counted = {name: value - earlier.counters.get(name, 0.0) for name, value in after.counters.items()}
    latencies, stale = _latencies(earlier, after)
    return Window(
        after,
        after.at - earlier.at if earlier else 0.0,
        counted,
        ever if since_start else part,
        since_start,
        restarted,
        latencies,
        stale,
        part,
        ever,
        None if tokens is None else tokens - last.probed_tokens,
        probes,
        earlier,
    )


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _per_step(generated: float | None, accepted: float) -> float | None:
    return generated / (generated - accepted) if generated and generated > accepted else None


def _fell(before: Reading, after: Reading) -> bool:
    pairs = [(before.counters.get(name), value) for name, value in after.counters.items()]
    positions = list(zip(before.accepted_at, after.accepted_at, strict=False))
    return any(old is not None and new < old for old, new in [*pairs, *positions])


def whole(reading: Reading) -> Drafting:
    """Drafting since the server started, without probes if the server counts them separately."""
    return counted_drafts(reading) - reading.probed if reading.probed.drafts else counted_drafts(reading)


def counted_drafts(reading: Reading) -> Drafting:
    """All drafts by the counters; zero if some of the speculation counters are missing."""
    if not reading.speculates:
        return Drafting()  # a partial set of counters would give a false rate
    drafts, drafted, accepted = (reading.counters[name] for name in DRAFTING)
    return Drafting(drafts, drafted, accepted, reading.accepted_at, reading.drafted_at)


def _latencies(before: Reading | None, after: Reading) -> tuple[dict[str, Buckets], bool]:
    """Histograms of the interval, or since the start (flag True) if nothing was observed in it."""
    if before is None:
        return dict(after.histograms), True
    part = {
        name: found.minus(before.histograms.get(name, Buckets({}, 0.0))) for name, found in after.histograms.items()
    }
    if any(found.count > 0 for found in part.values()):
        return part, False
    return dict(after.histograms), True
