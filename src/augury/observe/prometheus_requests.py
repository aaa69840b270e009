"""Metrics of requests: duration, size and outcome."""

from __future__ import annotations

from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter

from augury.observe.histogram import Histogram

LABELS = ("model_name", "engine")


def _bounds(text: str) -> tuple[float, ...]:
    return tuple(map(float, text.split()))


FIRST_TOKEN = _bounds(
    "0.001 0.005 0.01 0.02 0.04 0.06 0.08 0.1 0.25 0.5 0.75 1.0 2.5 5.0 7.5 10.0 20.0 40.0 80.0 160.0 640.0 2560.0"
)
BETWEEN_TOKENS = _bounds("0.01 0.025 0.05 0.075 0.1 0.15 0.2 0.3 0.4 0.5 0.75 1.0 2.5 5.0 7.5 10.0 20.0 40.0 80.0")
LATENCY = _bounds(
    "0.3 0.5 0.8 1.0 1.5 2.0 2.5 5.0 10.0 15.0 20.0 30.0 40.0 50.0 60.0 120.0 240.0 480.0 960.0 1920.0 7680.0"
)
ITERATION_TOKENS = (1, 8, *(1 << power for power in range(4, 15)))
ANSWERS = (1, 2, 5, 10, 20)
PREEMPTIONS = (1, 2, 3, 4, 5, 10, 20)
REASONS = ("stop", "length", "abort", "error")


def token_buckets(longest: int) -> list[int]:
    """1, 2, 5, 10, 20, 50, ... up to the model's context."""
    series = (first * 10**power for power in range(12) for first in (1, 2, 5))
    return [bound for bound in series if bound <= longest] or [1]


@dataclass(slots=True)
class Finished:
    """One answer's figures at its end; times in seconds, None if it ended before that stage."""

    reason: str
    prompt_tokens: int
    generation_tokens: int
    cached_tokens: int
    preemptions: int
    max_tokens: int | None
    whole: float  # from its arrival at the server
    queued: float | None
    prefill: float | None
    decode: float | None


class RequestProm:
    """vLLM's request histograms, with its buckets."""

    def __init__(self, registry: CollectorRegistry, model: str, max_model_len: int) -> None:
        self._labels, self._registry = (model, "0"), registry
        tokens = token_buckets(max_model_len)
        made = self._histogram
        self.first_token = made("time_to_first_token_seconds", "Until the first token.", FIRST_TOKEN)
        self.between = made("inter_token_latency_seconds", "Between two outputs of one request.", BETWEEN_TOKENS)
        self._per_token = made(
            "request_time_per_output_token_seconds", "Decode time over tokens, per request.", BETWEEN_TOKENS
        )
        self._whole = made("e2e_request_latency_seconds", "Arrival to end.", LATENCY)
        self._queued = made("request_queue_time_seconds", "Waiting for a slot.", LATENCY)
        self._inference = made("request_inference_time_seconds", "From slot to end.", LATENCY)
        self._prefill = made("request_prefill_time_seconds", "From slot to first token.", LATENCY)
        self._decode = made("request_decode_time_seconds", "From first token to last.", LATENCY)
        self._prompt = made("request_prompt_tokens", "Prompt tokens.", tokens)
        self._generated = made("request_generation_tokens", "Tokens generated.", tokens)
        self.longest = made("request_max_num_generation_tokens", "Tokens generated, the longest of n.", tokens)
        self._computed = made("request_prefill_kv_computed_tokens", "Prompt tokens not found in the cache.", tokens)
        self.n = made("request_params_n", "The parameter n.", ANSWERS)
        self._max_tokens = made("request_params_max_tokens", "The parameter max_tokens.", tokens)
        self._preempted = made("request_num_preemptions", "Times a request lost its slot.", PREEMPTIONS)
        success = Counter(
            "vllm:request_success", "Requests ended, by reason.", (*LABELS, "finished_reason"), registry=registry
        )
        self._ended = {reason: success.labels(*self._labels, reason) for reason in REASONS}
        self._refused = Counter(
            "vllm:admission_rejections",
            "Requests refused before the engine saw them.",
            ("model_name", "reason"),
            registry=registry,
        )

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...] | list[int]) -> Histogram:
        return Histogram(f"vllm:{name}", text, LABELS, buckets=buckets, registry=self._registry).labels(*self._labels)

    def refused(self, reason: str) -> None:
        """Count a refused request."""
        self._refused.labels(self._labels[0], reason).inc()

    def finished(self, answer: Finished, times: int = 1) -> None:
        """Count a finished answer, or several that are alike."""
        self._ended[answer.reason].inc(times)
        self._whole.observe(answer.whole, times=times)
        if answer.queued is not None:
            self._queued.observe(answer.queued, times=times)
        if answer.prefill is not None and answer.decode is not None:
            self._prefill.observe(answer.prefill, times=times)
            self._decode.observe(answer.decode, times=times)
            self._inference.observe(answer.prefill + answer.decode, times=times)
            if answer.generation_tokens > 1:
                self._per_token.observe(answer.decode / (answer.generation_tokens - 1), times=times)
        self._prompt.observe(answer.prompt_tokens, times=times)
        self._generated.observe(answer.generation_tokens, times=times)
        self._computed.observe(answer.prompt_tokens - answer.cached_tokens, times=times)
        if answer.max_tokens is not None:
            self._max_tokens.observe(answer.max_tokens, times=times)
        self._preempted.observe(answer.preemptions, times=times)
