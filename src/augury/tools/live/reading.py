"""One scrape by model: counters summed over its engines, gauges, histograms, and Augury's own metrics (`ours`)."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from augury.tools.live.buckets import Buckets, gather
from augury.tools.live.drafting import Drafting
from augury.tools.live.scrape import Scrape, Series

# Each figure's names in vLLM, the current one first.
COUNTERS = {
    "drafts": ("vllm:spec_decode_num_drafts",),
    "drafted": ("vllm:spec_decode_num_draft_tokens",),
    "accepted": ("vllm:spec_decode_num_accepted_tokens",),
    "prefix_queries": ("vllm:prefix_cache_queries", "vllm:gpu_prefix_cache_queries"),
    "prefix_hits": ("vllm:prefix_cache_hits", "vllm:gpu_prefix_cache_hits"),
    "preemptions": ("vllm:num_preemptions",),
    "prompt_tokens": ("vllm:prompt_tokens",),
    "generation_tokens": ("vllm:generation_tokens",),
    "finished": ("vllm:request_success",),
}
GAUGES = {
    "running": ("vllm:num_requests_running",),
    "waiting": ("vllm:num_requests_waiting",),
    "kv_usage": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
}
HISTOGRAMS = {
    "ttft": ("vllm:time_to_first_token_seconds",),
    "itl": ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
    "tpot": ("vllm:request_time_per_output_token_seconds",),
    "e2e": ("vllm:e2e_request_latency_seconds",),
}
DRAFTING = ("drafts", "drafted", "accepted")  # without one of these there is no rate
ACCEPTED_AT = "vllm:spec_decode_num_accepted_tokens_per_pos"
DRAFTED_AT = "augury:spec_decode_num_draft_tokens_per_pos"
BY_CONTEXT = tuple(
    f"augury:spec_decode_num_{what}_by_context" for what in ("drafts", "draft_tokens", "accepted_tokens")
)
PROBED = ("augury:probe_num_drafts", "augury:probe_num_draft_tokens", "augury:probe_num_accepted_tokens")
PROBED_TOKENS = "augury:probe_generation_tokens"
PROBED_AT = ("augury:probe_num_accepted_tokens_per_pos", "augury:probe_num_draft_tokens_per_pos")
POSITIONS = 256  # more than any draft has, whatever a label says


@dataclass(frozen=True, slots=True)
class Reading:
    """One model at one moment."""

    model: str
    at: float
    counters: dict[str, float] = field(default_factory=dict)  # by the names of COUNTERS, without those not exported
    gauges: dict[str, float] = field(default_factory=dict)
    histograms: dict[str, Buckets] = field(default_factory=dict)
    accepted_at: tuple[float, ...] = ()  # by position
    drafted_at: tuple[float, ...] = ()  # ours: drafts that reached a position
    engines: int = 1
    by_engine: dict[str, dict[str, float]] = field(default_factory=dict)  # drafting and tokens of each, if several
    by_context: dict[float, Drafting] = field(default_factory=dict)  # by upper bound in tokens, if exported
    probed: Drafting = field(default_factory=Drafting)  # ours: drafts for probes, which the counters include
    probed_tokens: float = 0.0  # ours: tokens generated for probes
    missing: tuple[str, ...] = ()  # speculation counters absent although others are exported
    method: str | None = None  # ours
    k_now: int | None = None  # ours: most tokens a request may draft at the moment
    lossy: bool | None = None  # ours
    speed_up: float | None = None  # ours: the server's measurement, otherwise its estimate
    speed_up_range: tuple[float, float] | None = None  # ours: a 95 % interval, if measured

    @property
    def speculates(self) -> bool:
        """Whether the speculation counters are exported; vLLM does so only if speculation is configured."""
        return set(DRAFTING) <= self.counters.keys()


def readings(scrape: Scrape) -> dict[str, Reading]:
    """Every model of a server, by name."""
    by_model: dict[str, dict[str, Series]] = defaultdict(lambda: defaultdict(list))
    for name, series in scrape.samples.items():
        for labels, value in series:
            if name.startswith(("vllm:", "augury:")) and (model := labels.get("model_name")) is not None:
                by_model[model][name].append((labels, value))
    return {model: _reading(model, scrape.at, samples) for model, samples in sorted(by_model.items())}


def over_all(scrape: Scrape) -> Reading:
    """All models of a server as one."""
    return _reading("", scrape.at, scrape.samples)


def _reading(model: str, at: float, samples: dict[str, Series]) -> Reading:
    found: dict[str, Any] = {"counters": {}, "gauges": {}, "histograms": {}}
    for figure, names in COUNTERS.items():
        _put(found["counters"], figure, _sum(_first(samples, names, ("_total", ""))))
    for figure, names in GAUGES.items():
        series = _first(samples, names, ("",))
        # The fullest engine is the bottleneck; requests are summed over all.
        _put(found["gauges"], figure, _max(series) if figure == "kv_usage" else _sum(series))
    for figure, names in HISTOGRAMS.items():
        name = next((name for name in names if f"{name}_bucket" in samples), "")
        _put(found["histograms"], figure, gather(samples.get(f"{name}_bucket", []), samples.get(f"{name}_sum", [])))
    engines = {labels.get("engine", "0") for labels, _ in samples.get(GAUGES["running"][0], [])}
    return Reading(
        model,
        at,
        **found,
        accepted_at=_by_position(samples, ACCEPTED_AT),
        drafted_at=_by_position(samples, DRAFTED_AT),
        engines=max(1, len(engines)),
        by_engine=_by_engine(samples, engines),
        by_context=_by_context(samples),
        probed=_probed(samples),
        probed_tokens=_sum(_first(samples, (PROBED_TOKENS,), ("_total", ""))) or 0.0,
        missing=_missing(samples, found["counters"]),
        **_ours(samples),
    )


def _by_engine(samples: dict[str, Series], engines: set[str]) -> dict[str, dict[str, float]]:
    """Counters by engine, because one bad engine among good ones does not show in their sum."""
    found: dict[str, dict[str, float]] = {engine: {} for engine in sorted(engines)} if len(engines) > 1 else {}
    for figure in (*DRAFTING, "generation_tokens"):
        series = _first(samples, COUNTERS[figure], ("_total", ""))
        for engine, counts in found.items():
            _put(counts, figure, _sum([one for one in series if one[0].get("engine", "0") == engine]))
    return found


def _by_context(samples: dict[str, Series]) -> dict[float, Drafting]:
    """Drafts by context length, summed over engines; the buckets are not cumulative."""
    counts: dict[float, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for number, name in enumerate(BY_CONTEXT):
        for labels, value in _first(samples, (name,), ("_total", "")):
            try:
                bound = float(labels.get("context", "nan"))
            except ValueError:
                continue
            if bound > 0 and math.isfinite(value) and value >= 0:
                counts[bound][number] += value
    found = sorted(counts.items())
    return {bound: Drafting(drafts, drafted, accepted) for bound, (drafts, drafted, accepted) in found}


def _probed(samples: dict[str, Series]) -> Drafting:
    drafts, drafted, accepted = (_sum(_first(samples, (name,), ("_total", ""))) or 0.0 for name in PROBED)
    accepted_at, drafted_at = (_by_position(samples, name) for name in PROBED_AT)
    return Drafting(drafts, drafted, accepted, accepted_at, drafted_at) if drafts else Drafting()


def _missing(samples: dict[str, Series], counters: dict[str, float]) -> tuple[str, ...]:
    """The speculation counters that are absent although others are exported."""
    positions = bool(_first(samples, (ACCEPTED_AT,), ("_total", "")))
    absent = [COUNTERS[figure][0] for figure in DRAFTING if figure not in counters]
    absent += [] if positions else [ACCEPTED_AT]
    return tuple(absent) if len(absent) <= len(DRAFTING) else ()


def _ours(samples: dict[str, Series]) -> dict[str, Any]:
    methods = [labels.get("method") for labels, value in samples.get("augury:method_info", []) if value]
    k, lossy = _max(samples.get("augury:num_speculative_tokens", [])), _max(samples.get("augury:lossy_rule", []))
    measured = {labels.get("bound"): value for labels, value in samples.get("augury:speedup_measured", [])}
    low, high = (measured.get(bound, math.nan) for bound in ("low", "high"))
    ratio = _max([({}, measured["ratio"])]) if "ratio" in measured else None
    return {
        "method": methods[0] if methods else None,
        "k_now": None if k is None else int(k),
        "lossy": None if lossy is None else bool(lossy),
        "speed_up": _max(samples.get("augury:speedup_estimate", [])) if ratio is None else ratio,
        "speed_up_range": (low, high) if math.isfinite(low) and math.isfinite(high) else None,
    }


def _first(samples: dict[str, Series], names: tuple[str, ...], endings: tuple[str, ...]) -> Series:
    """The samples under the first name that is exported, with one of the endings."""
    return next((samples[name + end] for name in names for end in endings if name + end in samples), [])


def _sum(series: Series) -> float | None:
    told = [value for _, value in series if math.isfinite(value) and value >= 0]
    return sum(told) if told else None


def _max(series: Series) -> float | None:
    return max((value for _, value in series if math.isfinite(value)), default=None)


def _put(into: dict[str, Any], name: str, value: Any) -> None:
    if value is not None:
        into[name] = value


def _by_position(samples: dict[str, Series], name: str) -> tuple[float, ...]:
    counts: dict[int, float] = defaultdict(float)
    for labels, value in _first(samples, (name,), ("_total", "")):
        position = labels.get("position", "")
        if position.isascii() and position.isdigit() and len(position) < 4 and math.isfinite(value) and value >= 0:
            counts[int(position)] += value
    last = max(counts, default=-1)
    return tuple(counts[position] for position in range(last + 1)) if last < POSITIONS else ()
