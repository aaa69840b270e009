"""What is counted is what is shown: statistics, log lines, Prometheus, the speed-up, the page's seconds."""

from __future__ import annotations

import math
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest

from augury.observe.logline import EngineLogging, SpecDecodingLogging
from augury.observe.prometheus import EngineProm, SpecDecodingProm, SpeculationProm
from augury.observe.prometheus_requests import BETWEEN_TOKENS, ITERATION_TOKENS, Finished, RequestProm, token_buckets
from augury.observe.spec_decoding import SpecDecodingStats
from augury.observe.speedup import ENOUGH, SpeedupEstimate
from augury.observe.steps import Step
from augury.serve import live as live_module
from augury.serve.live import Live

K = 4
drafts = st.lists(st.integers(1, K).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))), max_size=30)


def stats_of(pairs: list[tuple[int, int]]) -> SpecDecodingStats:
    stats = SpecDecodingStats.new(K)
    for drafted, accepted in pairs:
        stats.observe_draft(drafted, accepted)
    return stats


def step(requests: int, seconds: float, tokens: int, pairs: list[tuple[int, int, int]], prompt: int = 0) -> Step:
    rows = requests + prompt + sum(nodes for nodes, _, _ in pairs)
    return Step(requests, rows, prompt, K, 0.0, seconds, None, tokens, pairs)


@given(drafts)
def test_positions_add_up(pairs: list[tuple[int, int]]) -> None:
    stats = stats_of(pairs)
    assert stats.num_drafts == len(pairs)
    assert sum(stats.num_accepted_tokens_per_pos) == stats.num_accepted_tokens == sum(a for _, a in pairs)
    assert sum(stats.num_draft_tokens_per_pos) == stats.num_draft_tokens == sum(d for d, _ in pairs)
    assert stats.num_accepted_tokens_per_pos == sorted(stats.num_accepted_tokens_per_pos, reverse=True)


def test_a_tree_reaches_fewer_positions_than_it_has_tokens() -> None:
    stats = SpecDecodingStats.new(3)
    stats.observe_draft(num_draft_tokens=7, num_accepted_tokens=1, depth=2)
    assert stats.num_draft_tokens == 7 and stats.num_draft_tokens_per_pos == [1, 1, 0]


@given(st.lists(drafts, max_size=4))
def test_prometheus_has_the_same_numbers(steps: list[list[tuple[int, int]]]) -> None:
    registry = CollectorRegistry()
    prom = SpecDecodingProm(registry, "m", K)
    for pairs in steps:
        prom.observe(stats_of(pairs))
    everything = stats_of([pair for pairs in steps for pair in pairs])

    def value(name: str, **more: str) -> float | None:
        return registry.get_sample_value(name, {"model_name": "m", "engine": "0", **more})

    assert value("vllm:spec_decode_num_drafts_total") == everything.num_drafts
    assert value("vllm:spec_decode_num_draft_tokens_total") == everything.num_draft_tokens
    assert value("vllm:spec_decode_num_accepted_tokens_total") == everything.num_accepted_tokens
    for position in range(K):
        label = {"position": str(position)}
        per_pos = value("vllm:spec_decode_num_accepted_tokens_per_pos_total", **label)
        assert per_pos == everything.num_accepted_tokens_per_pos[position]
        reached = value("augury:spec_decode_num_draft_tokens_per_pos_total", **label)
        assert reached == everything.num_draft_tokens_per_pos[position]


def test_drafts_are_counted_by_the_length_of_their_text() -> None:
    registry = CollectorRegistry()
    prom = SpecDecodingProm(registry, "m", K)
    for tokens, drafted, accepted in ((5, 4, 3), (1024, 4, 1), (1025, 4, 2), (500_000, 2, 0)):
        prom.at_context(tokens, drafted, accepted)

    def value(name: str, context: str) -> float | None:
        labels = {"model_name": "m", "engine": "0", "context": context}
        return registry.get_sample_value(f"augury:spec_decode_num_{name}_by_context_total", labels)

    names = ("drafts", "draft_tokens", "accepted_tokens")
    assert [value(name, "1024") for name in names] == [2, 8, 4]
    assert [value(name, "4096") for name in names] == [1, 4, 2]
    assert [value(name, "+Inf") for name in names] == [1, 2, 0] and value("drafts", "8192") is None


def test_the_speculation_line(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    logging, lines = SpecDecodingLogging(), []
    logging.log(lines.append)
    assert lines == []  # nothing was drafted
    logging.observe(stats_of([(4, 4), (4, 1)]))
    logging.observe(stats_of([(2, 0)]))
    now[0] += 10
    logging.log(lines.append)
    assert lines == [
        "SpecDecoding metrics: Mean acceptance length: 2.67, Accepted throughput: 0.50 tokens/s, "
        "Drafted throughput: 1.00 tokens/s, Accepted: 5 tokens, Drafted: 10 tokens, "
        "Per-position acceptance rate: 0.667, 0.333, 0.333, 0.333, Avg Draft acceptance rate: 50.0%"
    ]
    logging.log(lines.append)
    assert len(lines) == 1  # each line begins anew


def test_the_engine_line_goes_quiet_when_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    logging, info, debug = EngineLogging(), [], []
    logging.running, logging.waiting, logging.kv_cache_usage = 2, 1, 0.255
    logging.observe(step(2, 0.1, 30, [], prompt=50), 200, 50)
    now[0] = 10
    logging.log(info.append, debug.append)
    assert info == [
        "Engine 000: Avg prompt throughput: 5.0 tokens/s, Avg generation throughput: 3.0 tokens/s, Running: 2 reqs, "
        "Waiting: 1 reqs, GPU KV cache usage: 25.5%, Prefix cache hit rate: 25.0%"
    ]
    for _ in range(2):
        now[0] += 10
        logging.log(info.append, debug.append)
    assert len(info) == 2 and len(debug) == 1  # the first idle stretch is still told


def test_the_speedup_compares_steps_of_one_size() -> None:
    estimate = SpeedupEstimate()

    def observe(one: Step, times: int = ENOUGH) -> None:
        for _ in range(times):
            estimate.observe(one)

    observe(step(1, 0.010, 3, [(4, 2, 4)]))
    assert math.isnan(estimate.value())  # no plain step yet
    observe(step(1, 5.0, 1, [], prompt=100))  # reading a prompt is no plain step
    observe(step(2, 9.0, 2, []))  # nor is one of two requests
    observe(step(1, 0.008, 1, []), ENOUGH - 1)
    assert math.isnan(estimate.value())  # the first ones of a size are slow: a few are not believed
    observe(step(1, 0.008, 1, []), ENOUGH)
    observe(step(1, 3.0, 1, []), 2)  # a stall does not count
    assert estimate.value() == pytest.approx(3 * 0.008 / 0.010)
    observe(step(2, 6.0, 8, [(4, 3, 4), (4, 3, 4)]))  # four tokens each, against 9.0 a token
    assert estimate.value() == pytest.approx((3 * 0.008 + 4 * 9.0) / (0.010 + 6.0))


def test_no_speedup_is_claimed_before_both_kinds_of_step() -> None:
    registry = CollectorRegistry()
    ours = SpeculationProm(registry, "m", "ngram", "exact", lossy=False)

    def shown() -> float:
        return registry.get_sample_value("augury:speedup_estimate", {"model_name": "m", "engine": "0"}) or 0.0

    assert math.isnan(shown())  # a server that has run nothing
    for _ in range(ENOUGH):
        ours.step(step(1, 0.010, 3, [(4, 2, 4)]))
    assert math.isnan(shown())
    for _ in range(ENOUGH):
        ours.step(step(1, 0.008, 1, []))
    assert shown() == pytest.approx(3 * 0.008 / 0.010)


def test_the_rest_of_prometheus() -> None:
    registry = CollectorRegistry()
    engine = EngineProm(registry, "m", {"block_size": 16})
    ours = SpeculationProm(registry, "m", "ngram", "typical", lossy=True)
    requests = RequestProm(registry, "m", 512)
    one = step(1, 0.2, 3, [(4, 2, 4)])
    engine.step(one)
    ours.step(one)
    engine.load(3, 2, 0.5)
    engine.count(generation_tokens=3, prefix_cache_hits=16)
    requests.finished(Finished("stop", 100, 11, 16, 0, 20, 2.0, 0.1, 0.4, 1.5))
    requests.finished(Finished("abort", 100, 0, 0, 0, None, 2.0, None, None, None))
    requests.refused("concurrency")
    labels = {"model_name": "m", "engine": "0"}

    def value(name: str, **more: str) -> float | None:
        return registry.get_sample_value(name, {**labels, **more})

    assert value("augury:rejected_share_of_step_time") == pytest.approx(2 / 5)  # two of five rows
    assert value("augury:rejected_step_seconds_total") == pytest.approx(0.08)
    assert value("augury:lossy_rule") == 1 and value("augury:method_info", method="ngram", rule="typical") == 1
    assert value("vllm:num_requests_waiting_by_reason", reason="capacity") == 2
    assert value("vllm:kv_cache_usage_perc") == 0.5 and value("vllm:generation_tokens_total") == 3
    assert value("vllm:request_time_per_output_token_seconds_sum") == pytest.approx(0.15)
    assert value("vllm:request_inference_time_seconds_sum") == pytest.approx(1.9)
    assert value("vllm:request_prefill_kv_computed_tokens_sum") == 184
    assert value("vllm:request_success_total", finished_reason="abort") == 1
    text = generate_latest(registry).decode()
    bounds = re.findall(r'vllm:inter_token_latency_seconds_bucket{.*?le="([\d.]+)"', text)
    assert [float(b) for b in bounds] == list(BETWEEN_TOKENS)
    assert ITERATION_TOKENS == (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
    assert token_buckets(600) == [1, 2, 5, 10, 20, 50, 100, 200, 500]


def test_answers_that_are_alike_are_counted_at_once() -> None:
    """As many as a client leaves behind, with values on a bound, between two and beyond the last."""
    registries = CollectorRegistry(), CollectorRegistry()
    figures_of = [RequestProm(registry, "m", 512) for registry in registries]
    for tokens in (0, 1, 3, 5, 4000):
        figures = Finished("abort", tokens, tokens, 0, 0, tokens, float(tokens), None, None, None)
        for _ in range(128):
            figures_of[0].finished(figures)
        figures_of[1].finished(figures, 128)
    lines = [
        [line for line in generate_latest(registry).decode().splitlines() if "_created" not in line]
        for registry in registries
    ]
    assert lines[0] == lines[1] and any("_bucket" in line and line.endswith(" 256.0") for line in lines[0])


def test_live_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(live_module.time, "time", lambda: now[0])
    live = Live(K)
    live.step(step(1, 0.1, 3, [(4, 2, 4)]))
    live.load(1, 0)
    now[0] += 3.5
    shown = live.shown()
    assert [b["at"] for b in shown["buckets"]] == [1000, 1001, 1002, 1003] and shown["uptime"] == 3.5
    first, *rest = shown["buckets"]
    assert (first["tokens"], first["acceptance_rate"], first["mean_acceptance_length"], first["k"]) == (3, 0.5, 3.0, K)
    assert all(b["tokens"] == 0 and b["acceptance_rate"] is None and b["running"] == 1 for b in rest)
    assert shown["per_position"] == {"drafted": [1, 1, 1, 1], "accepted": [1, 1, 0, 0]}
    now[0] += 10_000
    assert len(live.shown()["buckets"]) == 300
    assert live.shown()["totals"]["accepted"] == 2
