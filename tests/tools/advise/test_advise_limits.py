"""Advice at its limits: the cliff of captured graphs, memory, devices, intervals, and what nobody knows."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from advise_cases import BATCHES, DRAFT_MODEL, EAGLE3_HEAD, EAGLE3_K3, EAGLE3_K5, PLAIN, PROFILE, ask
from curves import curve_file
from hypothesis import given, settings
from hypothesis import strategies as st

from augury.config.errors import ConfigError
from augury.config.facts import ModelFacts
from augury.config.versions import version
from augury.tools.advise.accept import (
    SAMPLES,
    AcceptanceSource,
    ConversationCounts,
    Rated,
    Replayed,
    from_lengths,
    from_profile,
)
from augury.tools.advise.advice import advise
from augury.tools.advise.candidates import AdviceInputs
from augury.tools.advise.curve import check_curve
from augury.tools.advise.drafters import drafting_for
from augury.tools.advise.gpus import find_gpu
from augury.tools.advise.predict import Predictor, batch_sizes
from augury.tools.advise.published import drafter_exists, existing
from augury.tools.advise.roofline import Roofline
from augury.tools.advise.shape import shape_of
from augury.tools.advise.target import check_parallel, find_target
from augury.tools.advise.traffic import Traffic
from augury.tools.advise.verdicts import NOT, TRY, UNKNOWN, JudgedMethod
from augury.tools.shared.profile import make_profile

H200 = find_gpu("H200")
LLAMA = shape_of(find_target("llama-3.1-8b"))


def replayed(rate: float) -> Replayed:
    """Half the steps draft nothing, the others K tokens."""

    def counts(tokens: int) -> ConversationCounts:
        nodes = np.zeros((1, tokens + 1), int)
        nodes[0, 0] += 50
        nodes[0, tokens] += 50
        gained = int(50 * sum(rate**i for i in range(1, tokens + 1)))
        return ConversationCounts(np.array([100 + gained]), np.array([100]), nodes, np.array([gained]))

    return Replayed({tokens: counts(tokens) for tokens in (1, 2, 3, 4, 6, 8, 15)})


# --- every batch size has its K ---------------------------------------------------------------------------------------


@settings(max_examples=12, deadline=None)
@given(
    st.floats(0.2, 0.98),
    st.sampled_from(("eagle3", "ngram_gpu", "suffix")),
    st.sampled_from(("H200", "L40S")),
    st.booleans(),
    st.integers(1, 260),
)
def test_no_batch_is_served_by_a_k_that_is_slow_there(
    rate: float, method: str, gpu: str, varies: bool, most: int
) -> None:
    always = Rated(np.full((1 + SAMPLES, 1), rate) ** np.arange(1, 16))
    acceptance: AcceptanceSource = replayed(rate) if varies else always
    predictor, drafting = Predictor(Roofline(LLAMA, find_gpu(gpu)), Traffic()), drafting_for(method, LLAMA)
    ranges = predictor.schedule(acceptance, drafting, most)
    assert ranges[0][0] == 1 and ranges[-1][1] == most
    assert all(before[1] + 1 == after[0] and before[2] != after[2] for before, after in pairwise(ranges))
    for start, end, tokens in ranges:
        for size in range(start, end + 1):
            speeds = [predictor.speed(acceptance, drafting, size, k) for k in (0, *acceptance.lengths)]
            assert predictor.speed(acceptance, drafting, size, tokens) >= max(1.0, 0.97 * max(speeds))


def test_a_k_of_fifteen_ends_where_its_rows_leave_the_captured_graphs() -> None:
    """32 x 16 rows are 512; the sizes after that must not inherit this K from a coarse grid."""
    predictor = Predictor(Roofline(LLAMA, H200), Traffic())
    acceptance = Rated(np.full((1 + SAMPLES, 1), 0.97) ** np.arange(1, 16))
    for start, end, tokens in predictor.schedule(acceptance, drafting_for("ngram_gpu", LLAMA), 128):
        assert end * (1 + tokens) <= 512, (start, end, tokens)


def test_the_estimate_is_the_same_with_and_without_its_interval() -> None:
    predictor, drafting = Predictor(Roofline(LLAMA, H200), Traffic()), drafting_for("suffix", LLAMA)
    for size, tokens in ((1, 4), (33, 15), (64, 8)):
        at = predictor.at(replayed(0.8), drafting, size, tokens)
        assert at.decode.value == pytest.approx(predictor.speed(replayed(0.8), drafting, size, tokens))
    sizes = batch_sizes(4096)
    assert sizes[-1] == 4096 and sizes[:520] == list(range(1, 521)) and len(sizes) < 700


# --- what fits --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "gpu", "says"),
    [
        ("llama-3.3-70b", "H100", "needs 141.1 GB .* has 72.0 GB .*--tp 2"),
        ("llama-3.1-8b", "T4", "needs 16.1 GB .* has 14.4 GB"),
        ("deepseek-v3", "H200", "--tp 8 or more, or quantise"),
    ],
)
def test_a_target_that_does_not_fit_gets_no_other_advice(name: str, gpu: str, says: str) -> None:
    advice = advise(ask(name, gpu))
    assert advice.cannot is not None and re.search(says, advice.cannot) and advice.cannot.startswith("cannot: ")
    assert not advice.lines and advice.recommended is None and advice.as_record()["cannot"] == advice.cannot
    assert advise(ask(name, gpu, tp=8)).cannot is None


def test_caches_that_do_not_fit_are_not_predicted() -> None:
    asked = ask(gpu="L4", profiles=[PROFILE], loads=(1, 16, 64))
    [head] = [line for line in advise(asked).lines if line.candidate.method == "eagle3"]
    assert [at.requests for at in head.by_load] == [1, 16] and head.too_many == (64,)
    long = lines_of(replace(asked, traffic=Traffic(prompt_tokens=60_000, answer_tokens=6_000)))["eagle3"]
    assert long.verdict == NOT and "do not fit" in long.reason and not long.by_load
    latent = shape_of(find_target("deepseek-v3"))
    one, eight = (Roofline(latent, replace_memory(700 / n), n) for n in (1, 8))
    fitting = [max(n for n in range(1, 9999) if cost.fits(n, 4096, 0)) for cost in (one, eight)]
    assert fitting[0] // fitting[1] in (7, 8, 9)  # a latent cache has one head: each device keeps it whole


def replace_memory(gigabytes: float) -> Any:
    return H200.model_copy(update={"memory_gb": gigabytes * 1.2})


@pytest.mark.parametrize(
    ("name", "tp", "right"), [("llama-3.1-8b", 3, "1, 2, 4, 8, 16, 32"), ("qwen2.5-7b", 8, "1, 2, 4, 28")]
)
def test_a_tensor_parallel_size_that_heads_do_not_divide_by_is_refused(name: str, tp: int, right: str) -> None:
    with pytest.raises(ConfigError, match=rf"--tp {tp}: .* take {right}"):
        check_parallel(find_target(name), tp)
    check_parallel(find_target(name), 4)
    check_parallel(find_target("deepseek-v3"), 16)


@pytest.mark.parametrize(
    ("called", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA A100-SXM4-80GB", "A100 80GB"),
        ("NVIDIA A100-PCIE-40GB", "A100 40GB"),
        ("NVIDIA A10G", "A10G"),
        ("NVIDIA A100 80GB PCIe", "A100 80GB PCIe"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("Tesla T4", "T4"),
        ("Tesla V100-SXM2-16GB", "V100 16GB"),
        ("AMD Instinct MI300X", "MI300X"),
        ("NVIDIA L40S", "L40S"),
    ],
)
def test_devices_are_known_by_what_their_driver_calls_them(called: str, name: str) -> None:
    assert find_gpu(called).name == name
    assert find_gpu("A10G").bf16_tflops < find_gpu("A10").bf16_tflops


# --- doubt ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "tokens", "length", "anchors"),
    [("eagle3", 3, 3.0, EAGLE3_K3), ("eagle3", 5, 3.5, EAGLE3_K5), ("draft_model", 4, 3.5, DRAFT_MODEL)],
)
def test_intervals_hold_the_measured_speed_ups(
    method: str, tokens: int, length: float, anchors: tuple[int, ...]
) -> None:
    """End to end, since that is what was measured: 128 prompt tokens, 512 new ones."""
    drafting = drafting_for(method, LLAMA, find_target("llama-3.2-1b") if method == "draft_model" else None)
    predictor = Predictor(Roofline(LLAMA, H200), Traffic(prompt_tokens=128, answer_tokens=512))
    acceptance = from_lengths(length, length, length, tokens)
    for requests, measured, plain in zip(BATCHES, anchors, PLAIN, strict=True):
        at = predictor.at(acceptance, drafting, requests, tokens)
        assert at.whole.low <= measured / plain <= at.whole.high, requests


def test_the_further_from_what_was_measured_the_wider() -> None:
    moe = shape_of(find_target("qwen3-30b-a3b"))
    costs = [Roofline(LLAMA, H200), Roofline(LLAMA, find_gpu("L40S")), Roofline(moe, H200), Roofline(LLAMA, H200, 2)]
    assert [cost.spread(1, 4, 100) for cost in costs] == [0.08, 0.15, 0.20, 0.20]
    assert costs[0].spread(1, 1, 100) == 0


def test_all_of_eight_drafts_is_not_all_of_them() -> None:
    few = make_profile("eagle3", 3, [8, 8, 8], 8, [0, 0, 0, 8], 4.0, {})
    assert np.percentile(from_profile(few).at(3).tokens[1:], 5) < 3.5
    advice = advise(ask(profiles=[few]))
    [head] = [line for line in advice.lines if line.candidate.method == "eagle3"]
    assert not head.candidate.yours and head.verdict == TRY
    assert any("8 drafts is too small" in note for note in head.candidate.notes)


def test_without_a_trace_model_free_methods_are_not_known() -> None:
    lines = lines_of(ask())
    for method in ("ngram_gpu", "suffix"):
        line = lines[method]
        assert line.verdict == UNKNOWN and "give --trace" in line.reason and line.config is None
        assert all(at.decode.low < 1 for at in line.by_load if at.tokens)


def lines_of(asked: AdviceInputs) -> dict[str, JudgedMethod]:
    return {line.candidate.method: line for line in advise(asked).lines}


# --- drafters ---------------------------------------------------------------------------------------------------------


def test_naming_the_usual_head_changes_nothing() -> None:
    usual, named = drafting_for("eagle3", LLAMA), drafting_for("eagle3", LLAMA, ModelFacts("head", EAGLE3_HEAD))
    cost = Roofline(LLAMA, H200)
    for requests in (1, 64):
        assert cost.draft_ms(named, requests, 3, 400) == pytest.approx(cost.draft_ms(usual, requests, 3, 400), rel=1e-6)
    assert named.memory_bytes(8, 400) == pytest.approx(usual.memory_bytes(8, 400))
    whole = drafting_for("eagle3", LLAMA, ModelFacts("head", {**EAGLE3_HEAD, "draft_vocab_size": None}))
    assert cost.draft_ms(whole, 1, 3, 400) > cost.draft_ms(named, 1, 3, 400)


def test_a_method_without_a_drafter_for_the_target_is_not_advised() -> None:
    assert drafter_exists("eagle3", find_target("llama-3.1-8b")) and drafter_exists("mtp", find_target("deepseek-v3"))
    assert not drafter_exists("eagle", find_target("mistral-7b"))
    assert not drafter_exists("dspark", find_target("qwen3-32b"))
    advice = advise(ask("qwen3-32b"))
    lines = {line.candidate.method: line for line in advice.lines}
    assert lines["dspark"].verdict == UNKNOWN and "no drafter is known" in lines["dspark"].reason
    assert advice.recommended is not None and advice.recommended.candidate.method == "eagle3"
    given = advise(ask("qwen3-32b", profiles=[{**PROFILE, "method": "dspark"}]))
    assert given.recommended is not None and given.recommended.candidate.method == "dspark"
    assert all(one.methods for one in existing())


# --- whose rules ------------------------------------------------------------------------------------------------------


def test_with_a_curve_the_table_is_for_our_engine_unless_a_release_is_named() -> None:
    facts = find_target("llama-3.1-8b")
    written = curve_file(requests=(1, 16), rows=(1, 2, 4, 8))
    for point in written["steps"]:  # a row among few is free, among many it is the price
        point["ms"] = point["low"] = point["high"] = 10 + max(0.0, point["requests"] * point["rows"] - 8)
    profile = make_profile("suffix", 4, [700, 500, 350, 250], 1000, [300, 200, 150, 100, 250], 2.8, {})
    asked = AdviceInputs(facts, None, check_curve(written, "file"), Traffic(), profiles=[profile], loads=(1, 16))
    ours, theirs = advise(asked), advise(replace(asked, release_named=True))
    assert ours.as_record()["engine"] == "augury" and ours.as_record()["vllm_version"] is None
    assert theirs.as_record()["engine"] == "vllm" and theirs.as_record()["vllm_version"] == "0.32.0"
    assert "per_batch_size" in json.dumps(ours.as_record()["recommended"])
    assert "per_batch_size" not in json.dumps(theirs.as_record()["recommended"])
    assert any("Augury's engine" in line for line in ours.assumed)
    newer = advise(ask(release=version("0.40")))
    assert any("newer than what is known" in line for line in newer.assumed)


def test_a_load_that_pays_alone_is_named_where_one_k_must_serve_all() -> None:
    weak = make_profile("suffix", 4, [350, 120, 40, 10], 1000, [650, 230, 80, 30, 10], 1.52, {})
    line = lines_of(ask(profiles=[weak], loads=(8, 512, 1024, 2048)))["suffix"]
    assert line.verdict == NOT and "one K must serve all these loads" in line.reason and "at most" not in line.reason


def test_a_reason_against_everything_stands_without_figures() -> None:
    advice = advise(ask("qwen3-0.6b"))
    assert "which the roofline does not model" in advice.against[0]
    assert all(not line.by_load for line in advice.lines)
