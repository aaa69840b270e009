"""Metrics text in vLLM's shape, made from figures: what a server in each regime would export, at two moments.

`python tests/helpers/vllm_text.py` writes tests/recorded/*.txt; a test holds the files to what is written here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

RECORDED = Path(__file__).parents[1] / "recorded"
TTFT = (0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 1.0, 2.5)
TOKEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5)
WHOLE = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0)


@dataclass(frozen=True)
class Engine:
    """One engine's counters; drafts have K tokens unless `drafted` says otherwise."""

    drafts: int = 0
    rates: Sequence[float] = ()  # by position, over all drafts; none: speculation is off
    drafted: int | None = None
    generated: int = 0
    running: int = 2
    waiting: int = 0
    kv: float = 0.21
    queries: int = 60_000
    hits: int = 30_000
    preempted: int = 0
    finished: int = 40
    token_ms: float = 12.0  # a token, mean of requests
    step_ms: float = 30.0
    model: str = "meta-llama/Llama-3.1-8B-Instruct"
    engine: str = "0"
    slow: int = 0  # requests in the last bucket

    @property
    def accepted(self) -> list[int]:
        """By position."""
        return [round(rate * self.drafts) for rate in self.rates]


@dataclass(frozen=True)
class Moment:
    """One scrape."""

    engines: Sequence[Engine] = field(default_factory=lambda: [Engine()])
    total: bool = True  # whether counters end in _total
    created: bool = True


def text(moment: Moment) -> str:
    """The exposition."""
    lines: list[str] = []

    def metric(name: str, kind: str, rows: Iterable[tuple[str, str, float]]) -> None:
        lines.extend([f"# HELP vllm:{name} {name.replace('_', ' ')}.", f"# TYPE vllm:{name} {kind}"])
        lines.extend(f"vllm:{name}{end}{{{labels}}} {value}" for end, labels, value in rows)

    def labels(one: Engine) -> str:
        return f'engine="{one.engine}",model_name="{one.model}"'

    def counter(name: str, value: str) -> None:
        end = "_total" if moment.total else ""
        rows = [(end, labels(one), float(getattr(one, value))) for one in moment.engines]
        created = [("_created", labels(one), 1.7e9) for one in moment.engines] if moment.created else []
        metric(name, "counter", [*rows, *created])

    for name, value in (("num_requests_running", "running"), ("num_requests_waiting", "waiting"),
                        ("kv_cache_usage_perc", "kv")):  # fmt: skip
        metric(name, "gauge", [("", labels(one), float(getattr(one, value))) for one in moment.engines])
    for name, value in (("prefix_cache_queries", "queries"), ("prefix_cache_hits", "hits"),
                        ("num_preemptions", "preempted"), ("generation_tokens", "generated")):  # fmt: skip
        counter(name, value)
    _histograms(moment, metric, labels)
    if any(one.rates for one in moment.engines):
        _speculation(moment, metric, labels)
    return "\n".join(lines) + "\n"


def _speculation(moment: Moment, metric, labels) -> None:  # type: ignore[no-untyped-def]
    end = "_total" if moment.total else ""
    rows = [(end, labels(one), float(one.drafts)) for one in moment.engines]
    metric("spec_decode_num_drafts", "counter", rows)
    drafted = [one.drafts * len(one.rates) if one.drafted is None else one.drafted for one in moment.engines]
    metric("spec_decode_num_draft_tokens", "counter",
           [(end, labels(one), float(n)) for one, n in zip(moment.engines, drafted, strict=True)])  # fmt: skip
    metric("spec_decode_num_accepted_tokens", "counter",
           [(end, labels(one), float(sum(one.accepted))) for one in moment.engines])  # fmt: skip
    metric("spec_decode_num_accepted_tokens_per_pos", "counter",
           [(end, f'{labels(one)},position="{n}"', float(count)) for one in moment.engines
            for n, count in enumerate(one.accepted)])  # fmt: skip


def _histograms(moment: Moment, metric, labels) -> None:  # type: ignore[no-untyped-def]
    for name, bounds, mean in (
        ("time_to_first_token_seconds", TTFT, lambda one: 0.05),
        ("inter_token_latency_seconds", TOKEN, lambda one: one.step_ms / 1000),
        ("request_time_per_output_token_seconds", TOKEN, lambda one: one.token_ms / 1000),
        ("e2e_request_latency_seconds", WHOLE, lambda one: 100 * one.token_ms / 1000),
    ):  # fmt: skip
        rows: list[tuple[str, str, float]] = []
        for one in moment.engines:
            quick = one.finished - one.slow
            for bound in bounds:
                count = quick if bound >= mean(one) else 0
                count = one.finished if bound == bounds[-1] else count
                rows.append(("_bucket", f'{labels(one)},le="{bound}"', float(count)))
            rows.append(("_bucket", f'{labels(one)},le="+Inf"', float(one.finished)))
            rows.append(("_sum", labels(one), one.finished * mean(one)))
            rows.append(("_count", labels(one), float(one.finished)))
        metric(name, "histogram", rows)


def later(engine: Engine, drafts: int, tokens_a_step: float | None = None, **changed: object) -> Engine:
    """The same engine after so many more drafts, its rates unchanged unless told."""
    length = 1 + sum(engine.rates) if tokens_a_step is None else tokens_a_step
    drafted = None if engine.drafted is None else round(engine.drafted * (1 + drafts / max(1, engine.drafts)))
    whole = replace(
        engine, drafts=engine.drafts + drafts, generated=engine.generated + round(drafts * length), drafted=drafted,
        finished=engine.finished + 30, queries=engine.queries + 3000, hits=engine.hits + 1500,
    )  # fmt: skip
    return replace(whole, **changed)  # type: ignore[arg-type]


def plain(**figures: object) -> Engine:
    """An engine without speculation."""
    return Engine(generated=90_000, token_ms=30.0, step_ms=30.0, **figures)  # type: ignore[arg-type]


def started(rates: Sequence[float], drafts: int = 40_000, **figures: object) -> Engine:
    """An engine that has drafted for a while."""
    return Engine(drafts, rates, generated=round(drafts * (1 + sum(rates))), **figures)  # type: ignore[arg-type]


EAGLE3 = (0.92, 0.83, 0.74)
SCENES: dict[str, tuple[Engine, Engine]] = {}


def scene(name: str, engine: Engine, drafts: int = 2000, **changed: object) -> None:
    SCENES[name] = engine, later(engine, drafts, **changed)


scene("healthy-eagle3", started(EAGLE3))
scene("first-position-low", started((0.31, 0.12, 0.05)))
scene("length-one", started((0.0, 0.0, 0.0)))
scene("cliff-at-3", started((0.93, 0.88, 0.83, 0.22, 0.11, 0.05, 0.02)))
scene("busy-batch", started(EAGLE3, running=64, waiting=3, kv=0.72, token_ms=31.0))
scene("memory-short", started(EAGLE3, kv=0.97, waiting=40, running=20), preempted=17)
scene("suffix-short-drafts", started((0.55, 0.34, 0.2, 0.1, 0.06, 0.03, 0.02, 0.01), drafted=130_000))
scene("no-drafts", replace(started((0.0, 0.0, 0.0), drafts=0), generated=50_000), drafts=0, generated=54_000)
SCENES["speculation-off"] = plain(), later(plain(), 0, generated=92_000)
SCENES["idle"] = (started(EAGLE3, running=0),) * 2
SCENES["tail-worse"] = started(EAGLE3), later(started(EAGLE3), 2000, slow=2)


def recorded(name: str) -> tuple[bytes, bytes]:
    """The two moments of a scene, from the files."""
    first, second = ((RECORDED / f"{name}.{n}.txt").read_bytes() for n in (1, 2))
    return first, second


def made(name: str) -> tuple[str, str]:
    """The same, made anew."""
    first, second = (text(Moment([engine])) for engine in SCENES[name])
    return first, second


if __name__ == "__main__":
    RECORDED.mkdir(exist_ok=True)
    for scene_name in SCENES:
        for number, content in enumerate(made(scene_name), 1):
            (RECORDED / f"{scene_name}.{number}.txt").write_text(content)
