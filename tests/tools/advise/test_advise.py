"""Advice: the roofline against measured anchors, laws that any cost model must keep, and what is refused."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from advise_cases import BATCHES, DRAFT_MODEL, EAGLE3_K3, EAGLE3_K5, PLAIN
from hypothesis import given, settings
from hypothesis import strategies as st

from augury.config.errors import ConfigError
from augury.config.facts import ModelFacts
from augury.config.resolve import resolve
from augury.methods.registry import METHODS
from augury.tools.advise.accept import ConversationCounts, Rated, Replayed, from_lengths, from_profile, rate_for
from augury.tools.advise.candidates import family_methods
from augury.tools.advise.drafters import DraftingCost, drafting_for
from augury.tools.advise.gpus import find_gpu, gpus
from augury.tools.advise.predict import Predictor
from augury.tools.advise.published import find_published, published
from augury.tools.advise.roofline import Roofline
from augury.tools.advise.shape import ModelShape, shape_of
from augury.tools.advise.target import find_target, known_targets
from augury.tools.advise.traffic import Traffic
from augury.tools.shared.profile import make_profile

H200 = find_gpu("H200")


def target() -> ModelShape:
    return shape_of(find_target("llama-3.1-8b"))


def speed(requests: int, tokens: int = 0, length: float = 1.0, drafting: DraftingCost | None = None) -> float:
    """Tokens a second as the anchors count them: prompts included."""
    cost, context = Roofline(target(), H200), 128 + 256
    step = cost.step_ms(requests, 1 + tokens, context)
    step += cost.draft_ms(drafting, requests, tokens, context) if drafting else 0.0
    return 1e3 * requests * 512 / (cost.read_ms(128 * requests) + 511 / length * step)


@pytest.mark.parametrize(("requests", "measured"), zip(BATCHES, PLAIN, strict=True))
def test_the_roofline_gives_the_plain_anchors(requests: int, measured: int) -> None:
    assert speed(requests) == pytest.approx(measured, rel=0.15)


@pytest.mark.parametrize(
    ("method", "tokens", "length", "anchors"),
    [("eagle3", 3, 3.0, EAGLE3_K3), ("eagle3", 5, 3.5, EAGLE3_K5), ("draft_model", 4, 3.5, DRAFT_MODEL)],
)
def test_the_roofline_comes_near_the_speculative_anchors(
    method: str, tokens: int, length: float, anchors: tuple[int, ...]
) -> None:
    drafter = find_target("llama-3.2-1b") if method == "draft_model" else None
    drafting = drafting_for(method, target(), drafter)
    found = [speed(requests, tokens, length, drafting) for requests in BATCHES]
    assert found == [pytest.approx(measured, rel=0.18) for measured in anchors]


def test_the_roofline_foretells_what_it_was_not_read_off() -> None:
    """Published for one H100: SGLang's plain decoding, 158 tokens a second; vLLM's EAGLE-3 with K=3, four at once, 3.25
    ms a token at a length of 2.6."""
    shape = target()
    cost = Roofline(shape, find_gpu("H100"))
    assert 1e3 / cost.step_ms(1, 1, 400) == pytest.approx(158, rel=0.1)
    step = cost.step_ms(4, 4, 400) + cost.draft_ms(drafting_for("eagle3", shape), 4, 3, 400)
    assert step / 2.6 == pytest.approx(3.25, rel=0.1)


def test_the_crossover_lies_where_it_was_measured() -> None:
    """At 64 requests K=5 still wins; at 128 it runs 768 rows, past the captured graphs, and loses."""
    drafting = drafting_for("eagle3", target())
    assert speed(64, 5, 3.5, drafting) > speed(64)
    assert speed(128, 5, 3.5, drafting) < speed(128) < speed(128, 3, 3.0, drafting)


def test_shapes_have_the_weights_their_makers_name() -> None:
    billions = {
        "llama-3.1-8b": 8.03,
        "llama-3.3-70b": 70.6,
        "qwen3-8b": 8.2,
        "qwen3-30b-a3b": 30.5,
        "deepseek-v3": 671.0,
        "gpt-oss-120b": 117.0,
        "gpt-oss-20b": 20.9,
        "mistral-7b": 7.25,
        "qwen2.5-7b": 7.6,
        "qwen3-0.6b": 0.6,
        "llama-3.2-1b": 1.24,
        "llama-3.2-3b": 3.2,
        "qwen3-32b": 32.8,
    }
    assert set(billions) == set(known_targets())
    for name, size in billions.items():
        assert shape_of(find_target(name)).parameters / 1e9 == pytest.approx(size, rel=0.02), name
    active = {"qwen3-30b-a3b": 3.3, "deepseek-v3": 37.0, "gpt-oss-120b": 5.1}
    for name, size in active.items():
        assert shape_of(find_target(name)).active / 1e9 == pytest.approx(size, rel=0.15), name


def test_an_mla_cache_is_small_and_quantised_weights_count_as_they_are() -> None:
    deepseek = shape_of(find_target("deepseek-v3"))
    assert deepseek.cache_bytes(1) == 61 * (512 + 64) * 2
    assert deepseek.weight_bytes == 1.0 and deepseek.fp8
    awq = {**known_targets()["llama-3.1-8b"], "quantization_config": {"quant_method": "awq", "bits": 4}}
    small = shape_of(ModelFacts("awq", awq))
    assert 0.5 <= small.weight_bytes < 0.6 and not small.fp8
    packed = {
        "quant_method": "compressed-tensors",
        "config_groups": {"g": {"weights": {"num_bits": 8, "type": "float"}}},
    }
    assert shape_of(ModelFacts("w8", {**awq, "quantization_config": packed})).fp8


def test_a_mixture_of_experts_pays_more_for_rows_than_a_dense_model() -> None:
    """A few rows touch many experts: verification is dearer until all are touched anyway."""
    dense = Roofline(shape_of(find_target("qwen3-32b")), H200)
    sparse = Roofline(shape_of(find_target("qwen3-30b-a3b")), H200)
    assert (
        sparse.step_ms(1, 8, 512) / sparse.step_ms(1, 1, 512)
        > 1.2
        > dense.step_ms(1, 8, 512) / dense.step_ms(1, 1, 512)
    )


def test_every_gpu_is_found_by_its_names() -> None:
    for name, gpu in gpus().items():
        for word in (name, name.lower(), name.replace(" ", "-"), *gpu.aliases):
            assert find_gpu(word) is gpu
    assert find_gpu("NVIDIA H100").name == "H100 SXM"
    with pytest.raises(ConfigError, match=r"--gpu H300: not in the table; did you mean .*H200"):
        find_gpu("H300")


# --- laws -----------------------------------------------------------------------------------------------------------

SIZES = st.integers(1, 200)


@settings(max_examples=60, deadline=None)
@given(SIZES, st.floats(1, 32), st.floats(1, 1e5), st.floats(1, 4), st.sampled_from(sorted(known_targets())))
def test_more_is_never_cheaper(requests: int, rows: float, context: float, factor: float, name: str) -> None:
    shape = shape_of(find_target(name))
    cost = Roofline(shape, H200)
    here = cost.step_ms(requests, rows, context)
    assert 0 < here < math.inf
    assert cost.step_ms(requests + 1, rows, context) >= here
    assert cost.step_ms(requests, rows * factor, context) >= here
    assert cost.step_ms(requests, rows, context * factor) >= here
    faster = H200.model_copy(update={"bandwidth_gbs": H200.bandwidth_gbs * factor})
    stronger = H200.model_copy(update={"bf16_tflops": H200.bf16_tflops * factor})
    assert Roofline(shape, faster).step_ms(requests, rows, context) <= here
    assert Roofline(shape, stronger).step_ms(requests, rows, context) <= here


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 160),
    st.integers(1, 15),
    st.floats(0, 0.99),
    st.floats(0, 0.99),
    st.sampled_from(("eagle3", "ngram")),
)
def test_more_accepted_is_faster_and_nothing_drafted_changes_nothing(
    requests: int, tokens: int, low: float, high: float, method: str
) -> None:
    low, high = sorted((low, high))
    predictor = Predictor(Roofline(target(), H200), Traffic())
    drafting = drafting_for(method, target())

    def rated(rate: float) -> Rated:
        return Rated(np.full((401, 1), rate) ** np.arange(1, 16))

    few, many = (predictor.at(rated(rate), drafting, requests, tokens) for rate in (low, high))
    assert few.decode.value <= many.decode.value
    assert many.decode.low <= many.decode.value <= many.decode.high
    assert (many.whole.value >= 1) == (many.decode.value >= 1)
    assert abs(many.whole.value - 1) <= abs(many.decode.value - 1) + 1e-9  # reading prompts only dilutes it
    plain = predictor.at(rated(high), drafting, requests, 0)
    assert plain.decode == plain.whole == (1.0, 1.0, 1.0)
    assert predictor.best(rated(high), drafting, requests).decode.value >= 1.0


@settings(max_examples=80, deadline=None)
@given(st.floats(1, 6), st.integers(1, 16))
def test_a_rate_gives_its_length_back(length: float, tokens: int) -> None:
    rate = rate_for(length, tokens)
    assert 1 + sum(rate**i for i in range(1, tokens + 1)) == pytest.approx(min(length, tokens + 1), abs=1e-6)


def test_replayed_counts_become_tokens_a_step() -> None:
    counts = ConversationCounts(np.array([10, 20]), np.array([5, 15]), np.array([[1, 4], [10, 5]]), np.array([5, 5]))
    draws = Replayed({1: counts}).at(1)
    assert draws.tokens[0] == 30 / 20 and draws.nodes[0].tolist() == [11 / 20, 9 / 20]
    assert np.allclose(draws.nodes.sum(1), 1)
    assert set(np.round(draws.tokens[1:], 6)) == {2.0, 1.5, round(20 / 15, 6)}  # both, one twice, the other twice


def test_schedules_cover_every_batch_and_never_lose() -> None:
    predictor = Predictor(Roofline(target(), H200), Traffic())
    acceptance, drafting = from_lengths(3.0, 3.0, 3.0, 5), drafting_for("eagle3", target())
    ranges = predictor.schedule(acceptance, drafting, 256)
    assert ranges[0][0] == 1 and ranges[-1][1] == 256
    assert all(before[1] + 1 == after[0] for before, after in pairwise(ranges))
    assert [tokens for *_, tokens in ranges] == sorted((tokens for *_, tokens in ranges), reverse=True)
    for start, _, tokens in ranges:
        assert predictor.at(acceptance, drafting, start, tokens).decode.value >= 1.0
    parsed = resolve(
        {
            "method": "ngram",
            "num_speculative_tokens": 5,
            "num_speculative_tokens_per_batch_size": [list(r) for r in ranges],
        }
    )
    assert parsed is not None and parsed.schedule is not None


# --- what is known of methods ----------------------------------------------------------------------------------------


def test_families_have_the_methods_that_the_knowledge_names() -> None:
    found = {
        name: family_methods(find_target(name)) for name in ("llama-3.1-8b", "qwen3-8b", "deepseek-v3", "gpt-oss-20b")
    }
    assert found["llama-3.1-8b"] == ["draft_model", "eagle", "eagle3"]
    assert set(found["qwen3-8b"]) == {"draft_model", "eagle3", "dflash", "dspark"}
    assert found["deepseek-v3"] == ["mtp"] and found["gpt-oss-20b"] == ["eagle3"]


def test_published_figures_are_sound_and_nearest_first() -> None:
    assert {one.method for one in published()} <= set(METHODS)
    assert all(one.source and one.conditions for one in published())
    llama = find_published("eagle3", "llama", "chat")
    assert llama is not None and llama.targets == ("llama",)
    other = find_published("eagle3", "granite", "code")
    assert other is not None and not other.targets
    agent = find_published("suffix", "llama", "agent")
    assert agent is not None and agent.kind == "agent"
    assert find_published("custom_class", "llama", "chat") is None


def test_a_chat_head_is_discounted_on_agents() -> None:
    figure = find_published("eagle3", "llama", "chat")
    assert figure is not None
    (home, said), (away, warned) = figure.acceptance("chat"), figure.acceptance("agent")
    assert not said and "cut by up to" in warned
    assert away.at(3).tokens[0] < home.at(3).tokens[0]
    assert np.ptp(away.at(3).tokens) > np.ptp(home.at(3).tokens)


def test_profiles_carry_the_doubt_of_their_size() -> None:
    few, many = (
        from_profile(make_profile("eagle3", 3, [8 * n, 6 * n, 4 * n], 10 * n, [2 * n, 2 * n, 2 * n, 4 * n], 2.8, {}))
        for n in (1, 100)
    )
    assert few.at(3).tokens[0] == many.at(3).tokens[0] == pytest.approx(2.8)
    assert np.std(few.at(3).tokens[1:]) > 5 * np.std(many.at(3).tokens[1:])


# --- garbage ---------------------------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
FIELDS = tuple(
    """
    hidden_size num_hidden_layers num_attention_heads num_key_value_heads head_dim vocab_size intermediate_size
    num_experts num_experts_per_tok moe_intermediate_size kv_lora_rank layer_types sliding_window
    quantization_config tie_word_embeddings text_config first_k_dense_replace
    """.split()
)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=4))
def test_a_strange_config_is_an_error_that_names_the_field_or_a_shape(odd: dict[str, Any]) -> None:
    raw = {**known_targets()["llama-3.1-8b"], **odd}
    try:
        shape = shape_of(ModelFacts("odd", raw))
    except ConfigError as error:
        assert "odd: " in str(error) and any(name in str(error) for name in (*FIELDS, "qk_rope_head_dim"))
    else:
        assert shape.parameters > 0 and Roofline(shape, H200).step_ms(2, 3, 100) > 0


def test_a_target_that_is_not_there_is_told_what_there_is(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"names are .*llama-3"):
        find_target("llama-9")
    broken = tmp_path / "config.json"
    for text, says in (("{", "cannot be read"), ("[1]", "is not a JSON object")):
        broken.write_text(text)
        with pytest.raises(ConfigError, match=says):
            find_target(str(broken))
    broken.write_text("{}")
    with pytest.raises(ConfigError, match="hidden_size is missing"):
        shape_of(find_target(str(broken)))
    assert find_target("meta-llama/Llama-3.1-8B-Instruct").name == "llama-3.1-8b"
    whole, fp8, awq = (shape_of(find_target(f"x/Qwen3-8B{kind}")).stored_bytes for kind in ("", "-FP8", "-AWQ"))
    assert whole > fp8 > awq
