"""Advice: what is said for a target and its traffic, and why."""

from __future__ import annotations

import json

import pytest
from advise_cases import PROFILE, ask
from curves import curve_file

from augury.config.facts import ModelFacts
from augury.config.resolve import resolve
from augury.config.versions import version
from augury.methods.registry import METHODS
from augury.tools.advise.advice import NOT, TRY, UNKNOWN, USE, advise
from augury.tools.advise.candidates import AdviceInputs
from augury.tools.advise.curve import check_curve
from augury.tools.advise.gpus import find_gpu
from augury.tools.advise.roofline import Roofline
from augury.tools.advise.shape import shape_of
from augury.tools.advise.target import find_target, known_targets, why_not_decoding
from augury.tools.advise.traffic import Traffic
from augury.tools.shared.profile import make_profile

H200 = find_gpu("H200")


def test_a_profile_of_ones_own_is_worth_a_firm_word() -> None:
    advice = advise(ask(profiles=[PROFILE]))
    best = advice.recommended
    assert best is not None and best.candidate.method == "eagle3" and best.verdict == USE
    assert best.config is not None and best.config["num_speculative_tokens"] == 3
    assert [line.worth for line in advice.lines if line.verdict == TRY] == sorted(
        (line.worth for line in advice.lines if line.verdict == TRY), reverse=True
    )
    assert json.dumps(advice.as_record())


def test_schedules_are_for_releases_that_have_them() -> None:
    new, old = (advise(ask(release=release)).recommended for release in (version("0.24"), version("0.23")))
    assert new is not None and new.config is not None and "num_speculative_tokens_per_batch_size" in new.config
    assert old is not None and old.config is not None and "num_speculative_tokens_per_batch_size" not in old.config
    assert len({at.tokens for at in old.by_load}) == 1
    ancient = advise(ask(release=version("0.10")))
    assert {"suffix", "ngram_gpu"}.isdisjoint(line.candidate.method for line in ancient.lines)


def test_a_table_is_not_for_every_method() -> None:
    """vLLM refuses one with suffix; then one K serves all loads, and what each load would like is said."""
    advice = advise(ask(release=version("0.32")))
    lines = {line.candidate.method: line for line in advice.lines}
    assert "per_batch_size" not in json.dumps(lines["suffix"].config)
    assert len({at.tokens for at in lines["suffix"].by_load}) == 1
    assert any("one K for all loads" in note for note in lines["suffix"].candidate.notes)
    for line in advice.lines:
        if line.config and METHODS[line.candidate.method].weights == "none":
            parsed = resolve(line.config, as_of="0.32")
            assert parsed is not None and not [note for note in parsed.notes if note.refused]


def test_an_ngram_profile_serves_both_ngrams_and_a_loss_is_called_one() -> None:
    profile = make_profile("ngram", 2, [600, 300], 1000, [400, 300, 300], 1.9, {})
    advice = advise(ask(profiles=[profile], release=version("0.23"), loads=(1, 512)))
    [line] = [line for line in advice.lines if line.candidate.method == "ngram_gpu"]
    assert line.candidate.yours and line.by_load[0].decode.value > 1.3
    assert line.by_load[1].decode.value < 1 and "slower than plain decoding at 512" in line.reason


def test_a_family_without_heads_is_told_so() -> None:
    facts = ModelFacts("odd", {**known_targets()["mistral-7b"], "model_type": "mamba9"})
    shape = shape_of(facts)
    advice = advise(AdviceInputs(facts, shape, Roofline(shape, H200), Traffic()))
    assert any("no published head is known for model type 'mamba9'" in line for line in advice.assumed)
    assert {line.candidate.method for line in advice.lines} == {"ngram_gpu", "suffix"}


def test_a_drafter_that_does_not_fit_is_refused() -> None:
    tight = advise(ask(max_memory=1e8))
    [head] = [line for line in tight.lines if line.candidate.method == "eagle3"]
    assert head.verdict == NOT and "--max-memory leaves 0.1" in head.reason
    full = advise(ask(gpu="A100 80GB", name="qwen3-32b", loads=(1, 256)))  # 65.5 of the 72 GB are weights
    [head] = [line for line in full.lines if line.candidate.method == "dspark"]
    assert head.too_many == (256,) and head.as_record()["by_requests"][1] == {"requests": 256, "fits": False}
    crowded = advise(ask(gpu="L4", profiles=[PROFILE], loads=(64, 128)))
    [head] = [line for line in crowded.lines if line.candidate.method == "eagle3"]
    assert head.verdict == NOT and "do not fit into the 5.5 GB" in head.reason and head.config is None


@pytest.mark.parametrize(
    ("name", "traffic", "says"),
    [
        ("qwen3-0.6b", Traffic(), "0.60B weights"),
        ("llama-3.1-8b", Traffic(answer_tokens=1.0, requests=5), "answers of 1.0 tokens"),
        ("llama-3.1-8b", Traffic(prompt_tokens=30_000, answer_tokens=20, requests=5), "of the time at most"),
    ],
)
def test_what_will_not_pay_is_said_with_its_reason(name: str, traffic: Traffic, says: str) -> None:
    facts = find_target(name)
    shape = shape_of(facts)
    advice = advise(AdviceInputs(facts, shape, Roofline(shape, H200), traffic))
    assert advice.recommended is None and says in advice.against[0]
    assert all(line.verdict in (NOT, UNKNOWN) and line.config is None for line in advice.lines)


def test_beyond_the_crossover_the_answer_is_no() -> None:
    """A busy server past the captured graphs, with a drafter that accepts little."""
    profile = make_profile("eagle3", 3, [300, 100, 30], 1000, [700, 200, 70, 30], 1.43, {})
    advice = advise(ask(profiles=[profile], loads=(256, 512)))
    [head] = [line for line in advice.lines if line.candidate.method == "eagle3"]
    assert head.verdict == NOT and "no K is expected to be faster" in head.reason


def test_models_that_write_nothing_are_known() -> None:
    for raw in (
        {"model_type": "bert", "architectures": ["BertModel"]},
        *({"model_type": "x", "architectures": [name]} for name in ("LlamaModel", "MistralModel", "Qwen3Model")),
        {"model_type": "qwen2", "architectures": ["Qwen2ForSequenceClassification"]},
    ):
        assert "nothing to speed up" in str(why_not_decoding(ModelFacts("x", raw)))
    assert why_not_decoding(find_target("llama-3.1-8b")) is None
    for name in ("LlamaForCausalLM", "GPT2LMHeadModel", "ChatGLMModel", "InternVLChatModel", "Qwen2_5OmniModel"):
        assert why_not_decoding(ModelFacts("x", {"model_type": "x", "architectures": [name]})) is None


def test_loads_beyond_a_curve_are_said_to_be_guessed() -> None:
    facts = find_target("llama-3.1-8b")
    curve = check_curve(curve_file(requests=(1, 4)), "file")
    within, beyond = (advise(AdviceInputs(facts, None, curve, Traffic(), loads=loads)) for loads in ((1, 4), (1, 8)))
    assert not any("the curve ends" in line for line in within.assumed)
    assert any("the curve ends at 4 at once" in line for line in beyond.assumed)
