"""Structured output: every answer has its form, and speculation changes none of them.

The toy model's logits are random, so nothing but the grammar keeps an answer in form. AUGURY_TEST_DEVICE=cuda runs the
same on a GPU.
"""

import itertools
import json
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import reference
import torch
from draw_oracle import NEVER
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_trees import RandomTrees
from shallow import shallow_copy
from structured import EOS, FORMS, NGRAM, PROMPTS, TREE, answers, in_form, make, next_logits, onward, schemas, words
from torch import Tensor

from augury import LLM, SamplingParams
from augury.kernels import verify, verify_probs

SOME = settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])


@pytest.fixture(scope="module")
def weak(toy_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shallow_copy(toy_model, [0], tmp_path_factory.mktemp("weak"))


@pytest.fixture(scope="module")
def plain(toy_model: Path) -> LLM:
    return make(toy_model)


@pytest.fixture(scope="module")
def ngram(toy_model: Path) -> LLM:
    return make(toy_model, NGRAM)


@pytest.fixture(scope="module")
def tree(toy_model: Path, weak: Path) -> LLM:
    return make(toy_model, {"method": "draft_model", "model": str(weak), **TREE}, block_size=4)


Asked = tuple[list[str], list[SamplingParams]]


@pytest.fixture(scope="module")
def every_form() -> tuple[list[str], Asked]:
    """Every form, greedy and not, of every prompt: the forms' names, and what to ask in one batch."""
    cases = list(itertools.product(FORMS.items(), (0.0, 1.2), enumerate(PROMPTS)))
    params = [
        SamplingParams(temperature=temperature, seed=i, max_tokens=70, structured_outputs=form)
        for (_, form), temperature, (i, _) in cases
    ]
    return [name for (name, _), _, _ in cases], ([prompt for _, _, (_, prompt) in cases], params)


@pytest.fixture(scope="module")
def plain_answers(plain: LLM, every_form: tuple[list[str], Asked]) -> list:
    """By plain decoding, every third together: other company than in the batch with drafts."""
    prompts, params = every_form[1]
    found: list = [None] * len(prompts)
    for some in (slice(first, None, 3) for first in range(3)):
        found[some] = answers(plain, prompts[some], params[some])
    return found


@pytest.mark.parametrize(
    "spec",
    [
        NGRAM,
        {"method": "suffix", "num_speculative_tokens": 6},
        {"method": "draft_model", "num_speculative_tokens": 4},
        {"method": "draft_model", "num_speculative_tokens": 4, "draft_sample_method": "probabilistic"},
        {"method": "draft_model", **TREE},
        {"method": "draft_model", "speculative_token_tree": "[(0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0)]"},
    ],
    ids=["ngram", "suffix", "draft_model", "sampled drafts", "best tree", "given tree"],
)
def test_answers_have_their_form_whatever_drafts_them(
    toy_model: Path, weak: Path, every_form: tuple[list[str], Asked], plain_answers: list, spec: dict
) -> None:
    spec = {**spec, "model": str(weak)} if spec["method"] == "draft_model" else spec
    llm = make(toy_model, spec)
    names, asked = every_form
    assert answers(llm, *asked) == plain_answers
    finished: Counter[str] = Counter()
    for name, (_, text, reason) in zip(names, plain_answers, strict=True):
        assert reason in ("stop", "length")
        if reason == "stop":
            assert in_form(name, text), (name, text)
            finished[name] += 1
    assert all(finished[name] for name in FORMS), finished
    assert llm.engine.stats.spec.num_accepted_tokens > 30


def test_random_trees_change_nothing_but_the_number_of_passes(toy_model: Path, plain: LLM) -> None:
    """Branches of all kinds, many of them forbidden and some of them right, so that trees lose inner nodes."""
    form = {"regex": "([a-m]+[0-9])*xyz"}
    params = [SamplingParams(temperature=0.7, seed=i, max_tokens=60, structured_outputs=form) for i in range(5)]
    want = answers(plain, PROMPTS, params)
    llm = make(toy_model, {**NGRAM, "num_speculative_tokens": 12})
    truth = {i: [*plain.tokenizer.encode(p), *w[0]] for i, (p, w) in enumerate(zip(PROMPTS, want, strict=True))}
    llm.engine.runner.drafter = RandomTrees(12, truth)
    assert answers(llm, PROMPTS, params) == want
    assert answers(llm, PROMPTS, params) == want  # what the trees left in the prefix cache is sound
    assert llm.engine.stats.spec.num_accepted_tokens > 100


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["coupled", "standard"])
def test_the_torch_face_serves_the_same_text(
    toy_model: Path, weak: Path, plain: LLM, monkeypatch: pytest.MonkeyPatch, rule: str
) -> None:
    """What a GPU runs, through the whole engine; greedy under a rule that draws for itself."""
    monkeypatch.setattr(verify, "choose", lambda device: verify.VerifyOps(verify.draw, verify.walk))
    monkeypatch.setattr(verify_probs, "choose", lambda device: verify_probs.probabilities)
    sampled = {} if rule == "coupled" else {"draft_sample_method": "probabilistic", "rejection_sample_method": rule}
    shape = TREE if rule == "coupled" else {"num_speculative_tokens": 4}
    llm = make(toy_model, {"method": "draft_model", "model": str(weak), **shape, **sampled})
    for form in (FORMS["json"], FORMS["regex"]):
        for temperature in (0.0, 0.9) if rule == "coupled" else (0.0,):
            params = SamplingParams(temperature=temperature, seed=2, max_tokens=50, structured_outputs=form)
            assert answers(llm, PROMPTS, params) == answers(plain, PROMPTS, params)
    assert llm.engine.stats.spec.num_accepted_tokens > 0


@SOME
@given(expression=words(), seed=st.integers(0, 1000), temperature=st.sampled_from([0.0, 0.8, 2.0]))
def test_any_regex(plain: LLM, ngram: LLM, tree: LLM, expression: str, seed: int, temperature: float) -> None:
    form = {"regex": expression}
    params = SamplingParams(temperature=temperature, seed=seed, max_tokens=60, structured_outputs=form)
    want = answers(plain, PROMPTS[:2], params)
    for _, text, reason in want:
        assert reason == "length" or re.fullmatch(expression, text, re.DOTALL)
    assert answers(ngram, PROMPTS[:2], params) == want
    assert answers(tree, PROMPTS[:2], params) == want


@SOME
@given(case=schemas(), seed=st.integers(0, 1000), temperature=st.sampled_from([0.0, 0.8, 2.0]))
def test_any_schema(plain: LLM, ngram: LLM, tree: LLM, case: Any, seed: int, temperature: float) -> None:
    form = {"json": case[0], "disable_any_whitespace": True, "disable_additional_properties": True}
    params = SamplingParams(temperature=temperature, seed=seed, max_tokens=100, structured_outputs=form)
    want = answers(plain, PROMPTS[:2], params)
    for _, text, reason in want:
        assert reason == "length" or (case[1](json.loads(text)) and not re.search(r"[:,\[{] ", text))
    assert answers(ngram, PROMPTS[:2], params) == want
    assert answers(tree, PROMPTS[:2], params) == want


@pytest.fixture(scope="module")
def oracle(toy_model: Path) -> Callable[[list[int]], Tensor]:
    return next_logits(toy_model)


def by_hand(model: Callable, prompt: list[int], spelled: list[list[int]], temperature: float, seed: int) -> list[int]:
    """One of the words, token by token, by a plain loop that knows no grammars."""
    text: list[int] = []
    while True:
        allowed = onward(spelled, text)
        if allowed == [EOS]:
            return text
        scores = torch.full((260,), NEVER)
        scores[allowed] = model(prompt + text)[allowed]
        text.append(reference.draw(scores, len(prompt) + len(text), temperature, seed))
        if text[-1] == EOS:
            return text


@SOME
@given(
    choices=st.lists(st.text("abé", min_size=1, max_size=6), min_size=1, max_size=6, unique=True),
    seed=st.integers(0, 1000),
    temperature=st.sampled_from([0.0, 1.0]),
)
def test_choices_are_drawn_from_the_models_own_law(
    plain: LLM, tree: LLM, oracle: Callable, choices: list[str], seed: int, temperature: float
) -> None:
    params = SamplingParams(temperature=temperature, seed=seed, structured_outputs={"choice": choices})
    encode = plain.tokenizer.encode
    want = by_hand(oracle, encode("abab"), [encode(c) for c in choices], temperature, seed)
    for llm in (plain, tree):
        [(tokens, text, reason)] = answers(llm, ["abab"], params)
        assert tokens == want
        assert text in choices
        assert reason == "stop"


def test_a_grammar_request_leaves_its_company_alone(plain: LLM, ngram: LLM) -> None:
    free = [SamplingParams(temperature=0.9, seed=i, max_tokens=30, ignore_eos=True) for i in range(4)]
    bound = [replace(p, structured_outputs=FORMS["json"]) for p in free]
    prompts = PROMPTS[:4]
    alone = [answers(plain, [p], s)[0] for p, s in zip(prompts * 2, free + bound, strict=True)]
    for llm in (plain, ngram):
        assert answers(llm, prompts * 2, free + bound) == alone


@pytest.mark.parametrize(
    "options",
    [
        {"max_num_seqs": 1},
        {"long_prefill_token_threshold": 3},
        {"num_gpu_blocks_override": 12, "block_size": 8, "max_model_len": 88},  # preempts
        {"enable_prefix_caching": False},
    ],
    ids=lambda s: ",".join(f"{k}={v}" for k, v in s.items()),
)
def test_text_does_not_depend_on_how_it_was_served(toy_model: Path, plain: LLM, options: dict) -> None:
    form = {"regex": "[a-z0-9]{45}end"}
    params = [SamplingParams(temperature=0.8, seed=i, max_tokens=48, structured_outputs=form) for i in range(5)]
    want = answers(plain, PROMPTS, params)
    assert all(re.fullmatch("[a-z0-9]{45}end", text) for _, text, _ in want)
    llm = make(toy_model, NGRAM, **options)
    assert answers(llm, PROMPTS, params) == want
    assert answers(llm, PROMPTS, params) == want
    assert "num_gpu_blocks_override" not in options or llm.engine.stats.preemptions > 0


# --- with the other parameters -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "extra",
    [
        {"repetition_penalty": 1.4, "frequency_penalty": 0.5, "presence_penalty": -0.5},
        {"top_k": 2},
        {"top_p": 0.3},
        {"min_p": 0.4},
        {"bad_words": ["b", "cd"]},
        {"logit_bias": {64: 8.0, 65: -9.0}},
        {"min_tokens": 12},
        {"logprobs": 2, "prompt_logprobs": 1},
        {"ignore_eos": True},
        {"n": 3},
        {"stop": ["bc"]},
    ],
    ids=lambda e: ",".join(e),
)
def test_it_composes_with_every_parameter(plain: LLM, ngram: LLM, tree: LLM, extra: dict) -> None:
    form = {"regex": "[abcd]{0,30}"}
    params = SamplingParams(**{"temperature": 0.9, "seed": 5, "max_tokens": 40, "structured_outputs": form, **extra})
    want = answers(plain, PROMPTS, params)
    assert answers(ngram, PROMPTS, params) == want
    assert answers(tree, PROMPTS, params) == want
    for tokens, text, reason in want:
        assert re.fullmatch("[abcd]{0,30}", text)
        assert reason == "stop"
        assert "b" not in text or "bad_words" not in extra
        if "min_tokens" in extra or "ignore_eos" in extra:
            assert len(tokens) >= (30 if "ignore_eos" in extra else 12)
    assert len({text for _, text, _ in want}) > 1


def test_a_finished_grammar_ends_the_answer_before_min_tokens(plain: LLM, ngram: LLM) -> None:
    params = SamplingParams(temperature=1, seed=1, max_tokens=40, min_tokens=20, structured_outputs={"choice": ["abc"]})
    for llm in (plain, ngram):
        assert [(text, reason) for _, text, reason in answers(llm, PROMPTS, params)] == [("abc", "stop")] * 5


@pytest.mark.parametrize("rest", [{"allowed_token_ids": [70, 71]}, {"bad_words": ["a", "b"]}])
def test_where_nothing_else_is_left_the_grammar_wins(plain: LLM, ngram: LLM, rest: dict) -> None:
    params = SamplingParams(temperature=0, max_tokens=9, structured_outputs={"regex": "[ab]{3}c"}, **rest)
    for llm in (plain, ngram):
        for _, text, reason in answers(llm, PROMPTS, params):
            assert re.fullmatch("[ab]{3}c", text)
            assert reason == "stop"


def test_logprobs_stay_those_of_the_raw_logits(ngram: LLM, oracle: Callable) -> None:
    form = {"regex": "[ab]{8}"}
    params = SamplingParams(temperature=0, max_tokens=8, logprobs=1, structured_outputs=form)
    [output] = ngram.generate(["abab"], params, use_tqdm=False)
    tokens = ngram.tokenizer.encode("abab")
    for token, entry in zip(output.outputs[0].token_ids, output.outputs[0].logprobs, strict=True):
        assert entry[token].logprob == pytest.approx(float(oracle(tokens).log_softmax(0)[token]), abs=1e-3)
        tokens.append(token)
