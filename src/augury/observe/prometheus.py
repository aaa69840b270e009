"""Metrics for Prometheus: vLLM's names, labels and buckets; ours begin with `augury:`."""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge

from augury.observe.histogram import Histogram
from augury.observe.prometheus_requests import ITERATION_TOKENS
from augury.observe.spec_decoding import SpecDecodingStats
from augury.observe.speedup import HOW, SpeedupEstimate
from augury.observe.stats import GRAMMAR_OUTCOMES
from augury.observe.steps import Step

LABELS = ("model_name", "engine")
CONTEXTS = (1024, 4096, 8192, 16384, 32768, 65536, 131072)  # drafters get worse on long texts
STEP_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


class SpecDecodingProm:
    """The four speculation counters of vLLM, and ours of what was drafted at each position."""

    def __init__(self, registry: CollectorRegistry, model: str, num_spec_tokens: int) -> None:
        def counter(name: str, text: str, *more: str) -> Counter:
            return Counter(name, text, (*LABELS, *more), registry=registry)

        labels = (model, "0")
        by_position = counter(
            "vllm:spec_decode_num_accepted_tokens_per_pos", "Accepted drafts at each position.", "position"
        )
        drafted = counter("augury:spec_decode_num_draft_tokens_per_pos", "Drafts that reached a position.", "position")
        positions = [str(position) for position in range(num_spec_tokens)]
        self.counter_spec_decode_num_drafts = counter("vllm:spec_decode_num_drafts", "Drafts verified.").labels(*labels)
        self.counter_spec_decode_num_draft_tokens = counter(
            "vllm:spec_decode_num_draft_tokens", "Tokens drafted."
        ).labels(*labels)
        self.counter_spec_decode_num_accepted_tokens = counter(
            "vllm:spec_decode_num_accepted_tokens", "Drafted tokens accepted, without the extra token of each step."
        ).labels(*labels)
        self.counter_spec_decode_num_accepted_tokens_per_pos: dict[int, list[Counter]] = {
            0: [by_position.labels(*labels, position) for position in positions]
        }
        self._drafted_per_pos = [drafted.labels(*labels, position) for position in positions]
        by_context = "by the length of the text so far: up to `context` tokens."
        self._labels, self._by_context = (
            labels,
            [
                counter("augury:spec_decode_num_drafts_by_context", f"Drafts verified, {by_context}", "context"),
                counter("augury:spec_decode_num_draft_tokens_by_context", f"Tokens drafted, {by_context}", "context"),
                counter("augury:spec_decode_num_accepted_tokens_by_context", f"Accepted, {by_context}", "context"),
            ],
        )

    def at_context(self, tokens: int, drafted: int, accepted: int) -> None:
        """Count one draft under the length of its request's text."""
        bound = next((str(bound) for bound in CONTEXTS if tokens <= bound), "+Inf")
        for metric, count in zip(self._by_context, (1, drafted, accepted), strict=True):
            metric.labels(*self._labels, bound).inc(count)

    def observe(self, spec_decoding_stats: SpecDecodingStats, engine_idx: int = 0) -> None:
        """Add the statistics of one step."""
        stats = spec_decoding_stats
        self.counter_spec_decode_num_drafts.inc(stats.num_drafts)
        self.counter_spec_decode_num_draft_tokens.inc(stats.num_draft_tokens)
        self.counter_spec_decode_num_accepted_tokens.inc(stats.num_accepted_tokens)
        accepted = self.counter_spec_decode_num_accepted_tokens_per_pos[engine_idx]
        for child, count in zip(accepted, stats.num_accepted_tokens_per_pos, strict=True):
            child.inc(count)
        for child, count in zip(self._drafted_per_pos, stats.num_draft_tokens_per_pos, strict=True):
            child.inc(count)


class EngineProm:
    """What the engine does: queues, cache, tokens, steps."""

    def __init__(self, registry: CollectorRegistry, model: str, cache: dict[str, Any]) -> None:
        self._registry, self._labels = registry, (model, "0")
        self._running = self._gauge("vllm:num_requests_running", "Requests in the running batch.")
        self._waiting = self._gauge("vllm:num_requests_waiting", "Requests waiting for a slot.")
        by_reason = Gauge(
            "vllm:num_requests_waiting_by_reason",
            "Requests waiting, by what they wait for.",
            (*LABELS, "reason"),
            registry=registry,
        )
        self._for_capacity = by_reason.labels(*self._labels, "capacity")
        self._usage = self._gauge("vllm:kv_cache_usage_perc", "Share of the KV cache in use, 0 to 1.")
        self._counters = self._engine_counters()
        self._tokens = Histogram(
            "vllm:iteration_tokens_total",
            "Tokens run in one step.",
            LABELS,
            buckets=ITERATION_TOKENS,
            registry=registry,
        ).labels(*self._labels)
        self._seconds = Histogram(
            "augury:step_seconds",
            "Time of one step: all of it, and the drafter's part where it can be told apart.",
            (*LABELS, "part"),
            buckets=STEP_SECONDS,
            registry=registry,
        )
        self._faults = Counter(
            "augury:server_faults",
            "Internal server errors that were caught, by where they occurred.",
            (*LABELS, "where"),
            registry=registry,
        )
        grammars = Counter(
            "augury:grammar_compilations",
            "Grammars compiled or found compiled, refused, or ended, by outcome.",
            (*LABELS, "outcome"),
            registry=registry,
        )
        self._counters |= {f"grammars_{o}": grammars.labels(*self._labels, o) for o in GRAMMAR_OUTCOMES}
        self._by_drafter = [
            Counter(f"augury:spec_decode_num_{what}_tokens_by_drafter", text, (*LABELS, "drafter"), registry=registry)
            for what, text in (
                ("draft", "Tokens drafted, by drafter, if there are several."),
                ("accepted", "Drafted tokens accepted, by drafter, if there are several."),
            )
        ]
        info = {"engine": "0", **{name: str(value) for name, value in cache.items()}}
        Gauge("vllm:cache_config_info", "The KV cache, in labels.", list(info), registry=registry).labels(**info).set(1)

    def _engine_counters(self) -> dict[str, Any]:
        """The counters of the engine, by their names in the statistics."""
        return {
            "prompt_tokens": self._counter("vllm:prompt_tokens", "Prompt tokens of requests taken."),
            "prompt_tokens_cached": self._counter("vllm:prompt_tokens_cached", "Prompt tokens found in the cache."),
            "generation_tokens": self._counter("vllm:generation_tokens", "Tokens generated."),
            "prefix_cache_queries": self._counter("vllm:prefix_cache_queries", "Tokens looked up in the cache."),
            "prefix_cache_hits": self._counter("vllm:prefix_cache_hits", "Tokens found there."),
            "external_prefix_cache_queries": self._counter(
                "vllm:external_prefix_cache_queries", "Tokens not found in the cache, looked up in host memory."
            ),
            "external_prefix_cache_hits": self._counter("vllm:external_prefix_cache_hits", "Tokens found there."),
            "kv_offload_stored_blocks": self._counter(
                "augury:kv_offload_stored_blocks", "Evicted blocks copied to host memory."
            ),
            "kv_offload_damaged_blocks": self._counter(
                "augury:kv_offload_damaged_blocks", "Blocks in host memory with a wrong checksum, not used."
            ),
            "num_preemptions": self._counter("vllm:num_preemptions", "Requests preempted."),
        }

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(name, text, LABELS, registry=self._registry).labels(*self._labels)

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(name, text, LABELS, registry=self._registry).labels(*self._labels)

    def fault(self, where: str) -> None:
        """Count an internal error of the server."""
        self._faults.labels(*self._labels, where).inc()

    def load(self, running: int, waiting: int, kv_cache_usage: float) -> None:
        """Set the gauges of running and waiting requests and of the KV cache."""
        self._running.set(running)
        self._waiting.set(waiting)
        self._for_capacity.set(waiting)
        self._usage.set(kv_cache_usage)

    def count(self, **added: int) -> None:
        """Add to counters, by vLLM's names without the prefix."""
        for name, value in added.items():
            self._counters[name].inc(value)

    def step(self, step: Step) -> None:
        """Count one step."""
        self._tokens.observe(step.prompt_rows + step.generation_tokens)
        self._seconds.labels(*self._labels, "whole").observe(step.seconds)
        for name, *counts in step.parts:
            for metric, count in zip(self._by_drafter, counts, strict=True):
                metric.labels(*self._labels, name).inc(count)
        if step.drafter_seconds is not None:
            self._seconds.labels(*self._labels, "drafter").observe(step.drafter_seconds)


MEASURED = (
    "Measured speed-up at the load of the last step: passes with drafts against plain ones run on purpose, with a 95 % "
    "interval; NaN until enough pairs are there, or where drafting does not adapt."
)


class SpeculationProm:
    """Our own metrics: the method in use, what speculation costs and what it saves."""

    def __init__(self, registry: CollectorRegistry, model: str, method: str, rule: str, lossy: bool) -> None:
        def gauge(name: str, text: str, *more: str) -> Gauge:
            return Gauge(name, text, (*LABELS, *more), registry=registry)

        labels = (model, "0")
        gauge("augury:method_info", "The method and the rule in use, in labels.", "method", "rule").labels(
            *labels, method, rule
        ).set(1)
        gauge("augury:lossy_rule", "1 if the rule may change what the model says.").labels(*labels).set(int(lossy))
        self._k = gauge(
            "augury:num_speculative_tokens", "Most tokens a request may draft, as of the last step."
        ).labels(*labels)
        self._wasted = Counter(
            "augury:rejected_step_seconds",
            "Estimated time spent on rejected drafts: their rows' part of each step.",
            LABELS,
            registry=registry,
        ).labels(*labels)
        share = "Estimated share of step time spent on rejected drafts since the start: rows rejected over rows run."
        self._share = gauge("augury:rejected_share_of_step_time", share).labels(*labels)
        self._spent = self._lost = 0.0
        self._estimate = SpeedupEstimate()
        measured = gauge("augury:speedup_measured", MEASURED, "bound")
        self._measured = [measured.labels(*labels, bound) for bound in ("ratio", "low", "high")]
        self._hear(None)
        gauge("augury:speedup_estimate", HOW + ".").labels(*labels).set_function(self._estimate.value)  # when asked for

    def step(self, step: Step) -> None:
        """Count one step."""
        lost = step.seconds * step.rejected_rows / max(1, step.rows)
        self._spent += step.seconds
        self._lost += lost
        self._wasted.inc(lost)
        self._share.set(self._lost / self._spent if self._spent else 0.0)
        self._k.set(step.budget)
        self._estimate.observe(step)
        if step.speedup is not None:
            self._hear(step.speedup)

    def _hear(self, speedup: tuple[float, ...] | None) -> None:
        for shown, value in zip(self._measured, speedup or (float("nan"),) * 3, strict=True):
            shown.set(value)
