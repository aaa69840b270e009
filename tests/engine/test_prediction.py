"""OpenAI's `prediction`: an expected text saves passes and changes no token, with any method and with none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from generating import DEVICE, PROMPTS, ids

from augury import LLM, SamplingParams
from augury.config.errors import ConfigError
from augury.train.gates import Gates

NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3, "prompt_lookup_min": 1}
TREE = {"method": "suffix", "tree": {"max_nodes": 10, "top_k": 3}}


@pytest.fixture(scope="module")
def plain(toy_model: Path) -> LLM:
    return LLM(str(toy_model), device=DEVICE, max_model_len=256)


def asked(predictions: list[Any], **others: Any) -> list[SamplingParams]:
    every = {"max_tokens": 60, "ignore_eos": True, **others}
    return [
        SamplingParams(seed=i, extra_args=None if p is None else {"prediction": p}, **every)
        for i, p in enumerate(predictions)
    ]


def passes(llm: LLM, params: list[SamplingParams], prompts: list[str] = PROMPTS) -> tuple[list[list[int]], int]:
    before = llm.engine.stats.steps
    return ids(llm, prompts, params), llm.engine.stats.steps - before


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("spec", [None, NGRAM, TREE], ids=["none", "ngram", "tree"])
def test_expected_answers_come_in_few_passes(
    toy_model: Path, plain: LLM, spec: dict[str, Any] | None, temperature: float
) -> None:
    want, alone = passes(plain, asked([None] * 8, temperature=temperature))
    llm = LLM(str(toy_model), device=DEVICE, max_model_len=256, speculative_config=spec)
    edited = [[*answer[:20], 3, 4, *answer[22:]] for answer in want]
    got, few = passes(llm, asked(edited, temperature=temperature))
    assert got == want
    assert few < alone / 4
    drafted, accepted = llm.engine.stats.by_drafter["prediction"]
    assert drafted >= accepted > 8 * 30
    wrong = [answer[::-1] for answer in want]
    assert passes(llm, asked(wrong, temperature=temperature))[0] == want
    mixed = [wrong[0], None, *edited[2:5], None, "text", []]
    assert passes(llm, asked(mixed, temperature=temperature))[0] == want


@pytest.mark.parametrize(
    "settings",
    [
        {"max_num_seqs": 2},
        {"max_num_batched_tokens": 8, "max_num_seqs": 8},
        {"num_gpu_blocks_override": 12, "block_size": 8, "max_model_len": 88},  # preempts
    ],
    ids=lambda s: ",".join(f"{k}={v}" for k, v in s.items()),
)
def test_however_it_is_served(toy_model: Path, plain: LLM, settings: dict[str, Any]) -> None:
    want = ids(plain, PROMPTS, asked([None] * 8, max_tokens=40))
    llm = LLM(str(toy_model), device=DEVICE, **{"max_model_len": 256, **settings})
    assert ids(llm, PROMPTS, asked(want, max_tokens=40)) == want
    if "num_gpu_blocks_override" in settings:
        assert llm.engine.stats.preemptions > 0


def test_with_a_head_that_goes_on_reading(toy_model: Path, plain: LLM, tmp_path: Path) -> None:
    prompts = [plain.get_tokenizer().encode(prompt) for prompt in PROMPTS[:2]]
    head = Gates(toy_model, prompts, 24, tmp_path).train("eagle3", steps=20).directory
    spec = {"method": "eagle3", "model": str(head), "num_speculative_tokens": 3}
    llm = LLM(str(toy_model), device=DEVICE, max_model_len=256, speculative_config=spec)
    want = ids(plain, PROMPTS, asked([None] * 8))
    edited = [[*answer[:30], 3, 4, *answer[32:]] for answer in want]
    got, few = passes(llm, asked(edited))
    assert got == want
    _, alone = passes(llm, asked([None] * 8))
    assert few < alone / 2


@pytest.mark.parametrize("rule", ["standard", "block"])
def test_rules_over_probabilities_take_a_prediction_as_certain(toy_model: Path, tmp_path: Path, rule: str) -> None:
    plain = LLM(str(toy_model), device=DEVICE, max_model_len=256)
    prompts = [plain.get_tokenizer().encode(prompt) for prompt in PROMPTS[:2]]
    head = Gates(toy_model, prompts, 24, tmp_path).train("eagle3", steps=5).directory
    sampled = {"draft_sample_method": "probabilistic", "rejection_sample_method": rule}
    spec = {"method": "eagle3", "model": str(head), "num_speculative_tokens": 3, **sampled}
    llm = LLM(str(toy_model), device=DEVICE, max_model_len=256, speculative_config=spec)
    want = ids(plain, PROMPTS, asked([None] * 8, temperature=0.0))
    got, few = passes(llm, asked(want, temperature=0.0))
    assert got == want
    assert few < 60 / 2
    assert llm.engine.state.draft.tokens.shape[1] == 3  # the tables of laws are as wide as the method's drafts


def test_all_answers_of_a_prompt_follow_it(plain: LLM) -> None:
    alone = SamplingParams(n=3, temperature=0.0, max_tokens=40, ignore_eos=True)
    (want,) = plain.generate(["abcabc"], alone, use_tqdm=False)
    before = plain.engine.stats.steps
    expected = {"prediction": want.outputs[0].token_ids}
    (got,) = plain.generate(["abcabc"], alone.clone(extra_args=expected), use_tqdm=False)
    assert [o.token_ids for o in got.outputs] == [o.token_ids for o in want.outputs]
    assert plain.engine.stats.steps - before < 20


def test_stops_and_switches(plain: LLM) -> None:
    (want,) = ids(plain, ["hello hello"], asked([None], temperature=0.0))
    middle = want[30]
    stopped = asked([want], temperature=0.0, stop_token_ids=[middle])
    (request,) = plain.intake.requests("r", plain.tokenizer.encode("hello hello"), stopped[0])
    plain.engine.add(request)
    while request.finish_reason is None:
        plain.engine.step()
    assert request.output == want[: want.index(middle) + 1]
    assert request.prediction is not None
    assert request.prediction.accepted == len(request.output)
    (off,) = asked([want], temperature=0.0)
    off = off.clone(extra_args={"prediction": want, "speculative": {"enabled": False}})
    before = plain.engine.stats.steps
    assert ids(plain, ["hello hello"], off) == [want]
    assert plain.engine.stats.steps - before >= 60


def test_grammars_cut_what_they_forbid(plain: LLM) -> None:
    form = {"regex": "[a-c]{30}"}
    bare = SamplingParams(temperature=0.0, max_tokens=40, structured_outputs=form)
    (want,) = ids(plain, ["abc"], bare)
    before = plain.engine.stats.steps
    mixed = want[:12] + plain.tokenizer.encode("zzz", special=False) + want[12:]
    assert ids(plain, ["abc"], bare.clone(extra_args={"prediction": mixed})) == [want]
    assert plain.engine.stats.steps - before < 25


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (3, "prediction must be a text, text parts or token ids"),
        ({"type": "file", "content": "x"}, "prediction.type must be"),
        ({"content": None}, "prediction must be"),
        ({"type": "content", "content": "x", "more": 1}, "prediction.more is unknown"),
        ([{"type": "image_url", "image_url": {}}], "prediction must be"),
        ([1, 10**6], "prediction: token id 1000000 is not in the vocabulary"),
        ([True], "prediction must be"),
        ("x" * 300, "prediction has 300 tokens but max_model_len is 256"),
    ],
)
def test_bad_predictions_are_named(plain: LLM, given: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        plain.generate("a", SamplingParams(extra_args={"prediction": given}), use_tqdm=False)


def test_a_text_in_parts(plain: LLM) -> None:
    parts = [{"type": "text", "text": "ab"}, {"type": "text", "text": "c"}]
    for given in ("abc", {"type": "content", "content": "abc"}, {"type": "content", "content": parts}):
        params = SamplingParams(extra_args={"prediction": given})
        (request,) = plain.intake.requests("r", [1], params)
        assert request.prediction is not None
        assert request.prediction.expected.tokens == plain.tokenizer.encode("abc", special=False)
