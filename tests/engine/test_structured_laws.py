"""Structured output under the rules that reject: the form is kept, and so is the law; and the embedded model's JSON."""

import itertools
import json
import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from shallow import shallow_copy
from structured import FORMS, PERSON, PROMPTS, answers, is_person, make, next_logits, onward
from torch import Tensor

from augury import LLM, SamplingParams
from augury.drafters.text import TextDrafter
from augury.verify.tree import Draft, chain_parents


@pytest.fixture(scope="module")
def weak(toy_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shallow_copy(toy_model, [0], tmp_path_factory.mktemp("weak"))


@pytest.fixture(scope="module")
def plain(toy_model: Path) -> LLM:
    return make(toy_model)


@pytest.mark.parametrize("rule", ["standard", "block", "typical", "entropy"])
def test_other_rules_keep_the_form(toy_model: Path, weak: Path, plain: LLM, rule: str) -> None:
    sampled = {"draft_sample_method": "probabilistic", "rejection_sample_method": rule}
    llm = make(toy_model, {"method": "draft_model", "model": str(weak), "num_speculative_tokens": 4, **sampled})
    params = SamplingParams(temperature=1, seed=3, max_tokens=70, structured_outputs=FORMS["json"])
    for _, text, reason in answers(llm, PROMPTS, params):
        assert reason == "length" or is_person(json.loads(text))
    if rule in ("standard", "block"):
        params = params.clone(temperature=0)
        assert answers(llm, PROMPTS, params) == answers(plain, PROMPTS, params)
    assert llm.engine.stats.spec.num_accepted_tokens > 0


class Dice(TextDrafter):
    """Draws every token from one law, which favours a letter that the grammar forbids."""

    name = "dice"

    def __init__(self, law: dict[int, float], nodes: int) -> None:
        self.law = torch.zeros(260)
        self.law[list(law)] = torch.tensor(list(law.values()))
        self.nodes, self.random = nodes, torch.Generator().manual_seed(0)

    def draft(self, slots: Tensor, lengths: Tensor, history: Tensor, budget: Tensor) -> Draft:
        shape = len(slots), self.nodes
        tokens = self.law.multinomial(len(slots) * self.nodes, True, generator=self.random).view(shape)
        laws = self.law.expand(*shape, -1).to(slots.device)
        return Draft(tokens.to(slots.device), chain_parents(*shape, slots.device), budget, laws, branching=False)


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["standard", "block"])
def test_the_law_of_the_answer_through_a_sampling_drafter(toy_model: Path, weak: Path, plain: LLM, rule: str) -> None:
    """1,500 answers against the target's law under the grammar: that most drafts are taken away must not show."""
    oracle: Callable[[list[int]], Tensor] = next_logits(toy_model)
    trials, prompt, encode = 1500, "the cat", plain.tokenizer.encode
    choices = ["".join(letters) for letters in itertools.product("aqz", repeat=3)]
    spelled = [encode(c) for c in choices]
    law: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(3):
        grown = {}
        for prefix, chance in law.items():
            after = onward(spelled, list(prefix))
            here = (oracle(encode(prompt) + list(prefix))[after] / 8).softmax(0).tolist()
            grown |= {(*prefix, token): chance * p for token, p in zip(after, here, strict=True)}
        law = grown
    sampled = {"draft_sample_method": "probabilistic", "rejection_sample_method": rule}
    spec = {"method": "draft_model", "model": str(weak), "num_speculative_tokens": 2, **sampled}
    llm = make(toy_model, spec, max_num_seqs=64)
    llm.engine.runner.drafter = Dice(dict(zip(encode("aqzb"), (0.05, 0.1, 0.35, 0.5), strict=True)), 2)
    params = SamplingParams(temperature=8, n=trials, seed=7, structured_outputs={"choice": choices})
    seen = Counter(tuple(tokens) for tokens, _, _ in answers(llm, [prompt], params))
    spec_stats = llm.engine.stats.spec
    assert trials / 2 < spec_stats.num_draft_tokens < 1.5 * trials  # of 2 or 3 drafted
    statistic = sum((seen[t] - trials * p) ** 2 / (trials * p) for t, p in law.items())
    freedom = len(law) - 1
    assert statistic < freedom + 5 * math.sqrt(2 * freedom)


@pytest.fixture(scope="module")
def embedded(default_model: Path) -> list[LLM]:
    """Without and with a drafter."""
    spec = {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4, "prompt_lookup_min": 2}
    return [make(default_model, drafter, max_model_len=512) for drafter in (None, spec)]


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_json_from_the_embedded_model(embedded: list[LLM], temperature: float) -> None:
    asked = "Write this person as JSON with name, age and tags (red, green or blue): Ada is 36 and likes red and blue."
    params = [
        SamplingParams(temperature=temperature, seed=i, max_tokens=60, structured_outputs={"json": PERSON})
        for i in range(2)
    ]
    texts = []
    for llm in embedded:
        outputs = llm.chat([[{"role": "user", "content": asked}]] * 2, params, use_tqdm=False)
        texts.append([o.outputs[0].token_ids for o in outputs])
        assert all(is_person(json.loads(o.outputs[0].text)) for o in outputs if o.outputs[0].finish_reason == "stop")
        assert any(o.outputs[0].finish_reason == "stop" for o in outputs)
    assert texts[0] == texts[1]
