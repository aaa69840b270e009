"""Synthetic series in promtool's notation: what a server would have counted, minute by minute."""

from __future__ import annotations

from collections.abc import Iterable

from augury.tools.monitor.matchers import quoted

HOUR = 60  # minutes, promtool's step
DRAFTS = 600.0  # per minute


class World:
    """The series of one test."""

    def __init__(self, labels: dict[str, str], ours: bool) -> None:
        self.labels, self.ours = labels, ours
        self._courses: dict[str, list[str]] = {}  # the values of each series, stretch by stretch

    @property
    def series(self) -> list[dict[str, str]]:
        """The series as the test file lists them."""
        return [{"series": name, "values": " ".join(values)} for name, values in self._courses.items()]

    def add(self, metric: str, values: str, target: bool = False, labels: dict[str, str] | None = None) -> World:
        """Extend a series with these values; `target` drops the labels that a scrape target does not have."""
        unknown, every = ("model_name", "engine") if target else (), labels or self.labels
        return self._add(metric, values, {k: v for k, v in every.items() if k not in unknown}, None)

    def gauge(self, metric: str, values: str, minutes: int, target: bool = False) -> World:
        """A gauge that stays, or climbs as `from+step`."""
        return self.add(metric, f"{values}x{minutes}", target)

    def traffic(
        self,
        rates: list[float],
        minutes: int,
        drafts: float = DRAFTS,
        tokens: float | None = None,
        labels: dict[str, str] | None = None,
        drafted: float | None = None,
    ) -> World:
        """Drafts whose positions are accepted at these rates; counters begin at 0.

        `drafted`: mean tokens per draft, if drafts differ in length.
        """
        for metric, position, step in _counted(rates, drafts, self.ours, tokens, drafted):
            self._add(metric, f"0+{step:.10g}x{minutes}", labels or self.labels, position)
        return self

    def tokens(self, amount: float, minutes: int, labels: dict[str, str] | None = None) -> World:
        """Tokens generated without drafts."""
        return self.add("vllm:generation_tokens_total", f"0+{amount:g}x{minutes}", labels=labels)

    def idle(self, minutes: int) -> World:
        """Keep every counter constant."""
        for values in self._courses.values():
            first, _, times = values[-1].partition("x")
            start, _, step = first.partition("+")
            values.append(f"{float(start) + float(step or 0) * int(times):.10g}x{minutes}")
        return self

    def course(self, stretches: Iterable[tuple[int, list[float]]]) -> World:
        """Consecutive stretches of (minutes, rates), with continuous counters."""
        reached: dict[tuple[str, int | None], float] = {}
        for minutes, rates in stretches:
            for metric, position, step in _counted(rates, DRAFTS, self.ours, None):
                start = reached.get((metric, position), 0.0) + step
                self._add(metric, f"{start:.10g}+{step:.10g}x{minutes - 1}", self.labels, position)
                reached[metric, position] = start + step * (minutes - 1)
        return self

    def late(self, rates: list[float], after: int, minutes: int) -> World:
        """Traffic whose drafts start only after some minutes."""
        for metric, position, step in _counted(rates, DRAFTS, self.ours, None):
            always = metric == "vllm:generation_tokens_total"
            values = f"0+{step:.10g}x{after + minutes}" if always else f"_x{after} 0+{step:.10g}x{minutes}"
            self._add(metric, values, self.labels, position)
        return self

    def _add(self, metric: str, values: str, labels: dict[str, str], position: int | None) -> World:
        more = {} if position is None else {"position": str(position)}
        said = ",".join(f"{name}={quoted(value)}" for name, value in {**labels, **more}.items())
        self._courses.setdefault(f"{metric}{{{said}}}", []).append(values)
        return self


def _counted(
    rates: list[float], drafts: float, ours: bool, tokens: float | None, drafted: float | None = None
) -> list[tuple[str, int | None, float]]:
    """Each counter with its position, if it has one, and its increase per minute."""
    accepted = drafts * sum(rates)
    found: list[tuple[str, int | None, float]] = [
        ("vllm:spec_decode_num_drafts_total", None, drafts),
        ("vllm:spec_decode_num_draft_tokens_total", None, drafts * (drafted or len(rates))),
        ("vllm:spec_decode_num_accepted_tokens_total", None, accepted),
    ]
    for position, rate in enumerate(rates):
        found.append(("vllm:spec_decode_num_accepted_tokens_per_pos_total", position, drafts * rate))
        if ours:
            found.append(("augury:spec_decode_num_draft_tokens_per_pos_total", position, drafts))
    if tokens is not None or drafts:
        found.append(("vllm:generation_tokens_total", None, tokens if tokens is not None else drafts + accepted))
    return found
