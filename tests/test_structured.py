"""Structured output: every answer has its form, and speculation changes none of them.

The toy model's logits are random, so nothing but the grammar keeps an answer in form. AUGURY_TEST_DEVICE=cuda runs the
same on a GPU.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reference
import torch
from draw_oracle import NEVER, Oracle, scenario
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from shallow import shallow_copy
from test_engine import RandomTrees
from test_probs import wrong_law
from torch import Tensor

from augury import LLM, SamplingParams, StructuredOutputsParams
from augury.config.errors import ConfigError
from augury.engine.grammar import Grammar, Grammars
from augury.kernels import verify, verify_numba, verify_probs, verify_probs_numba
from augury.propose.text import TextDrafter
from augury.verify.sampling import Masks
from augury.verify.tree import Draft, chain_parents

DEVICE = os.environ.get("AUGURY_TEST_DEVICE", "cpu")
PROMPTS = ["abcabcabc", '{"a": 1, "b": true}', "z", "the cat sat on the mat and the cat sat", "1212121"]
NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3, "prompt_lookup_min": 1}
TREE = {"num_speculative_tokens": 4, "tree": {"max_nodes": 12, "top_k": 3}}
EOS = 256
PERSON = {
    "type": "object", "required": ["name", "age", "tags"], "additionalProperties": False,
    "properties": {
        "name": {"type": "string", "maxLength": 6}, "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 4},
    },
}  # fmt: skip
FORMS: dict[str, dict[str, Any]] = {
    "json": {"json": PERSON, "disable_any_whitespace": True},
    "json text": {"json": json.dumps(PERSON), "whitespace_pattern": " ?"},
    "regex": {"regex": r"(ab|cd){2,12}[0-9]+e"},
    "choice": {"choice": ["ab", "abc", "abcabcabcabc", "né\n\"☃\\"]},
    "grammar": {"grammar": 'start: "(" start ")" | "x" start | "1212" start | "y"'},
    "gbnf": {"grammar": 'root ::= "abc" root | "12" root | [x-z]'},
    "json_object": {"json_object": True},
}  # fmt: skip
SOME = settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])


def in_form(name: str, text: str) -> bool:
    """Whether a whole answer has its form, by something other than the engine's parser."""
    if name.startswith("json"):
        value = json.loads(text)
        return isinstance(value, dict) if name == "json_object" else is_person(value)
    if name == "choice":
        return text in FORMS["choice"]["choice"]
    if name == "grammar":
        inner = re.fullmatch(r"((?:x|1212|\()*)y(\)*)", text)
        return bool(inner) and inner.group(1).count("(") == len(inner.group(2))
    return bool(re.fullmatch(FORMS["regex"]["regex"] if name == "regex" else "(abc|12)*[x-z]", text))


def is_person(value: Any) -> bool:
    """PERSON, checked by hand."""
    return (
        set(value) == {"name", "age", "tags"} and isinstance(value["name"], str) and len(value["name"]) <= 6
        and type(value["age"]) is int and 0 <= value["age"] <= 120
        and len(value["tags"]) <= 4 and set(value["tags"]) <= {"red", "green", "blue"}
    )  # fmt: skip


def make(model: Path, spec: dict[str, Any] | None = None, **options: Any) -> LLM:
    return LLM(str(model), device=DEVICE, **{"max_model_len": 256, **options}, speculative_config=spec)


def answers(llm: LLM, prompts: list[str], params: Any) -> list[tuple[list[int], str, str | None]]:
    outputs = llm.generate(prompts, params, use_tqdm=False)
    assert llm.engine.scheduler.pool.num_free == llm.engine.scheduler.pool.num_blocks
    return [(c.token_ids, c.text, c.finish_reason) for o in outputs for c in o.outputs]


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


@pytest.fixture(scope="module")
def grammars(plain: LLM) -> Grammars:
    return Grammars(plain.tokenizer, 260)


# --- the text ------------------------------------------------------------------------------------------------------


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
def test_answers_have_their_form_whatever_drafts_them(toy_model: Path, weak: Path, plain: LLM, spec: dict) -> None:
    spec = {**spec, "model": str(weak)} if spec["method"] == "draft_model" else spec
    llm = make(toy_model, spec)
    finished: Counter[str] = Counter()
    for name, form in FORMS.items():
        for temperature in (0.0, 1.2):
            params = [
                SamplingParams(temperature=temperature, seed=i, max_tokens=70, structured_outputs=form)
                for i in range(len(PROMPTS))
            ]
            want = answers(plain, PROMPTS, params)
            assert answers(llm, PROMPTS, params) == want
            for _, text, reason in want:
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
    llm.engine.drafter = RandomTrees(12, truth)
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


def words(depth: int = 2) -> st.SearchStrategy[str]:
    """Small regular expressions that Python reads too."""
    atom = st.sampled_from(["a", "b", "1", "[a-c]", "[^a-y]", r"\d", "(ab)", "abc"])
    if depth == 0:
        return atom
    inner = words(depth - 1)
    many = st.tuples(inner, st.sampled_from(["", "?", "{1,3}", "{2}", "{0,5}"])).map(lambda p: f"(?:{p[0]}){p[1]}")
    return st.lists(many, min_size=1, max_size=3).map("".join) | st.tuples(inner, inner).map("|".join)


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


def schemas(depth: int = 2) -> st.SearchStrategy[tuple[dict[str, Any], Callable[[Any], bool]]]:
    """A schema, and the same as a Python check."""
    leaf = st.sampled_from(
        [
            ({"type": "boolean"}, lambda v: isinstance(v, bool)),
            ({"type": "null"}, lambda v: v is None),
            ({"enum": ["ab", 12, None]}, lambda v: v in ("ab", 12, None)),
            ({"type": "integer", "minimum": -5, "maximum": 40}, lambda v: type(v) is int and -5 <= v <= 40),
            ({"type": "string", "maxLength": 3}, lambda v: isinstance(v, str) and len(v) <= 3),
        ]
    )
    if depth == 0:
        return leaf
    inner = schemas(depth - 1)
    lists = inner.map(
        lambda s: (
            {"type": "array", "items": s[0], "maxItems": 2},
            lambda v, check=s[1]: isinstance(v, list) and len(v) <= 2 and all(map(check, v)),
        )
    )
    return leaf | lists | st.tuples(inner, inner).map(lambda pair: record(*pair))


def record(first: Any, second: Any) -> tuple[dict[str, Any], Callable[[Any], bool]]:
    """An object with one property it must have and one it may have."""
    shape = {"type": "object", "properties": {"k": first[0], "é": second[0]}, "required": ["k"]}

    def check(value: Any) -> bool:
        known = isinstance(value, dict) and "k" in value and set(value) <= {"k", "é"}
        return known and first[1](value["k"]) and ("é" not in value or second[1](value["é"]))

    return shape, check


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
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(toy_model)

    @torch.inference_mode()
    def logits(tokens: list[int]) -> Tensor:
        return model(torch.tensor([tokens])).logits[0, -1].float()

    return logits


def onward(spelled: list[list[int]], prefix: list[int]) -> list[int]:
    """What may follow a prefix of some words: the end of text exactly where one of them ends."""
    after = {w[len(prefix)] for w in spelled if w[: len(prefix)] == prefix and len(w) > len(prefix)}
    return sorted(after | {EOS}) if prefix in spelled else sorted(after)


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
        {"top_k": 2}, {"top_p": 0.3}, {"min_p": 0.4}, {"bad_words": ["b", "cd"]}, {"logit_bias": {64: 8.0, 65: -9.0}},
        {"min_tokens": 12}, {"logprobs": 2, "prompt_logprobs": 1}, {"ignore_eos": True}, {"n": 3}, {"stop": ["bc"]},
    ],
    ids=lambda e: ",".join(e),
)  # fmt: skip
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


# --- rules that draw for themselves --------------------------------------------------------------------------------


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
def test_the_law_of_the_answer_through_a_sampling_drafter(
    toy_model: Path, weak: Path, oracle: Callable, plain: LLM, rule: str
) -> None:
    """1,500 answers against the target's law under the grammar: that most drafts are taken away must not show."""
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
    llm.engine.drafter = Dice(dict(zip(encode("aqzb"), (0.05, 0.1, 0.35, 0.5), strict=True)), 2)
    params = SamplingParams(temperature=8, n=trials, seed=7, structured_outputs={"choice": choices})
    seen = Counter(tuple(tokens) for tokens, _, _ in answers(llm, [prompt], params))
    spec_stats = llm.engine.stats.spec
    assert trials / 2 < spec_stats.num_draft_tokens < 1.5 * trials  # of 2 or 3 drafted
    statistic = sum((seen[t] - trials * p) ** 2 / (trials * p) for t, p in law.items())
    freedom = len(law) - 1
    assert statistic < freedom + 5 * math.sqrt(2 * freedom)


# --- masks and pruning ---------------------------------------------------------------------------------------------


def fresh(grammars: Grammars, expression: str, path: list[int]) -> Grammar:
    """A grammar that has read a path and nothing else."""
    grammar = grammars.start(SamplingParams(structured_outputs={"regex": expression}))
    assert grammar is not None
    for token in path:
        grammar.consume(token)
    grammar.look_ahead([], [])
    return grammar


def may(mask: np.ndarray) -> set[int]:
    return set(np.nonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))[0].tolist())


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.data(), st.sampled_from(["(ab?c){1,4}", "(a|bb|c[ab])*", "abc|abd|b", "a{2,3}b?"]), st.integers(0, 3))
def test_each_node_has_the_mask_of_its_own_path(grammars: Grammars, data: Any, expression: str, read: int) -> None:
    def after(path: list[int]) -> set[int]:
        return may(fresh(grammars, expression, path).masks[0])

    before: list[int] = []  # never complete: a request would have ended there
    for _ in range(read):
        more = [t for t in sorted(after(before) - {EOS}) if after([*before, t]) != {EOS}]
        before += more[:1]
    count = data.draw(st.integers(0, 14))
    letters = [64, 65, 66]
    tokens = [data.draw(st.sampled_from(letters * 5 + [EOS, -1, 999])) for _ in range(count)]
    parents = [data.draw(st.integers(-1, i - 1)) for i in range(count)]
    grammar = fresh(grammars, expression, before)
    kept = grammar.look_ahead(tokens, parents)
    paths = {-1: before}
    for node in range(count):
        above = paths.get(parents[node])
        alive = above is not None and (parents[node] < 0 or after(above) != {EOS})  # nothing hangs below a whole text
        if alive and tokens[node] in after(above):
            paths[node] = [*above, tokens[node]]
    assert [-1, *kept] == sorted(paths)
    assert [may(mask) for mask in grammar.masks] == [after(paths[node]) for node in sorted(paths)]
    assert grammar.look_ahead([], []) == [] and may(grammar.masks[0]) == after(before)  # and it is back where it was


def test_forbidden_drafts_cost_no_row_and_are_not_counted(toy_model: Path) -> None:
    """Behind every 1 the prompt says a, which the answer may not."""
    llm = make(toy_model, NGRAM)
    rows = []
    run = llm.engine.run
    llm.engine.run = lambda work: rows.append(work.lines) or run(work)  # type: ignore[method-assign,func-returns-value]
    params = SamplingParams(temperature=0, max_tokens=9, structured_outputs={"regex": "(1b){3}"})
    [(_, text, _)] = answers(llm, ["1a1a1a1a1a"], params)
    assert text == "1b1b1b"
    # Once the answer repeats itself its drafts are right: 1 b 1 (bad guess: a) then b1b.
    spec = llm.engine.stats.spec
    assert spec.num_draft_tokens == spec.num_accepted_tokens
    assert sum(rows) == spec.num_draft_tokens + llm.engine.stats.steps
    free = make(toy_model, NGRAM)
    answers(free, ["1a1a1a1a1a"], params.clone(structured_outputs=None, logit_bias={18: 50.0}, ignore_eos=True))
    assert free.engine.stats.spec.num_draft_tokens > 0


@pytest.fixture
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def masked_scenario(seed: int) -> tuple[Tensor, Any, Any, Tensor]:
    """A scenario of test_draw with masks on some of its lines, and the same as bool [L, V]."""
    logits, draws, params = scenario(seed)
    random = np.random.default_rng(seed + 1)
    lines, vocab = logits.shape
    width = -(-vocab // 32)
    words = random.integers(-(2**31), 2**31, (lines, width), dtype=np.int64)
    words[random.random((lines, width)) < 0.3] = 0
    words[random.random((lines, width)) < 0.3] = -1
    bits = torch.from_numpy(words.astype(np.int32))
    allowed = verify.unpacked(bits, vocab)
    empty = ~allowed.any(1)
    bits[empty], allowed[empty] = -1, True  # a grammar always has a way on
    rows = torch.from_numpy(random.permutation(lines))
    rows[torch.from_numpy(random.random(lines) < 0.3)] = -1
    allowed = allowed[rows.clamp(min=0)] | (rows < 0)[:, None]
    return logits, replace(draws, masks=Masks(bits, rows)), params, allowed


@settings(deadline=None, derandomize=True, max_examples=80)
@given(st.integers(0, 10**6))
def test_every_face_masks_alike(seed: int) -> None:
    logits, draws, params, allowed = masked_scenario(seed)
    bare = logits.masked_fill(~allowed, NEVER)
    laws = [face(logits, draws, params) for face in (verify_probs.probabilities, verify_probs_numba.probabilities)]
    for draw in (verify.draw, verify_numba.draw):
        for line, token in enumerate(draw(logits, draws, params).tolist()):
            truth = Oracle(bare, draws, params, line)
            if truth.scores.max() > NEVER:
                truth.check(token)
                for law in laws:
                    assert not wrong_law(law[line].double().numpy(), truth, token)
            else:
                biased = params.bias is not None and bool(params.biased[draws.slots[line]])
                open_to = allowed[line] & (params.bias[draws.slots[line]] > NEVER) if biased else allowed[line]
                if int(draws.masks.rows[line]) >= 0 and not open_to.any():
                    open_to = allowed[line]
                highest = int(verify.ordered(logits[line]).argmax())
                assert token == (int(open_to.int().argmax()) if open_to.any() else highest)
                assert all(law[line, token] == 1 for law in laws)
            assert allowed[line, token]


def test_faces_differ_almost_never(one_thread: None) -> None:
    cases = [masked_scenario(seed)[:3] for seed in range(150)]
    pairs = [(verify.draw(*case).tolist(), verify_numba.draw(*case).tolist()) for case in cases]
    assert sum(len(a) for a, _ in pairs) > 1500
    assert sum(x != y for a, b in pairs for x, y in zip(a, b, strict=True)) <= 2


def test_threads_mask_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [masked_scenario(seed)[:3] for seed in range(10)]
    alone = [verify_numba.draw(*case).tolist() for case in cases]
    monkeypatch.setattr(verify_numba, "PARALLEL_FROM", 0)
    assert [verify_numba.draw(*case).tolist() for case in cases] == alone


# --- what is refused -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ({"json": "{bad"}, r"structured_outputs\.json is not JSON"),
        ({"json": "[1]"}, r"structured_outputs\.json must be a JSON schema"),
        ({"json": 5}, r"structured_outputs\.json must be a JSON schema"),
        ({"json": {"type": "thing"}}, r"structured_outputs\.json cannot be used: Invalid type: thing"),
        ({"json": {"type": "integer", "minimum": 5, "maximum": 3}}, "minimum .5. is greater than maximum .3."),
        ({"json": {"$ref": "#/nowhere"}}, r"structured_outputs\.json cannot be used.*nowhere"),
        ({"regex": "(a"}, r"structured_outputs\.regex cannot be used.*unclosed group"),
        ({"regex": r"[^\s\S]"}, r"structured_outputs\.regex cannot be used"),
        ({"regex": 7}, r"structured_outputs\.regex must be a string"),
        ({"grammar": "start: nothing"}, r"structured_outputs\.grammar cannot be used.*nothing"),
        ({"grammar": "root ::= ("}, r"structured_outputs\.grammar cannot be used"),
        ({"choice": []}, r"structured_outputs\.choice must be a non-empty list"),
        ({"choice": "ab"}, r"structured_outputs\.choice must be a non-empty list"),
        ({"choice": [1]}, r"structured_outputs\.choice must be a non-empty list"),
        ({"json_object": "yes"}, r"structured_outputs\.json_object must be true or false"),
        ({"json_object": True, "regex": "a"}, "exactly one of .* it has regex and json_object"),
        ({}, "exactly one of .* it has none"),
        ({"structural_tag": "{}"}, "structural_tag is not supported"),
        ({"jsn": {}}, "did you mean 'json'"),
        ("json", "must be StructuredOutputsParams"),
    ],
)  # fmt: skip
def test_bad_forms_say_what_is_wrong(plain: LLM, form: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        plain.generate(["a"], SamplingParams(structured_outputs=form), use_tqdm=False)
    assert "\n" not in str(caught.value)


def test_one_bad_form_is_one_bad_response(ngram: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = (SamplingParams(structured_outputs=StructuredOutputsParams(regex=r)) for r in ("[ab]{3}", "(a"))
    outputs = ngram.generate(["x", "y", "z"], [good, bad, good], use_tqdm=False)
    assert [bool(o.error) for o in outputs] == [False, True, False]
    assert all(re.fullmatch("[ab]{3}", outputs[i].outputs[0].text) for i in (0, 2))
    assert "unclosed group" in capsys.readouterr().err


def test_a_grammar_that_gives_up_ends_its_request_and_no_other(ngram: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=20, structured_outputs={"regex": "[ab]{15}"})
    first, second = (ngram._requests(str(i), ngram.tokenizer.encode("abab"), params)[0] for i in range(2))
    for request in (first, second):
        ngram.engine.add(request)
    ngram.engine.step()
    first.grammar._matcher.consume_token(70)  # type: ignore[union-attr]  # as if it had run out of its limits
    while ngram.engine.busy:
        ngram.engine.step()
    assert first.finish_reason == "error"
    assert "structured_outputs" in str(first.stop_reason)
    assert second.finish_reason == "stop"
    assert re.fullmatch("[ab]{15}", ngram.tokenizer.decoder(True)(second.output))


def test_sources_are_compiled_once(grammars: Grammars) -> None:
    before = grammars._compiled.cache_info()
    for form in ({"json": {"type": "null"}}, {"json": '{"type": "null"}'}, {"json": {"type": "null"}}):
        grammars.start(SamplingParams(structured_outputs=form))
    after = grammars._compiled.cache_info()
    assert after.misses - before.misses == 1
    assert after.hits - before.hits == 2


def test_closing_a_schema_leaves_names_and_values_alone() -> None:
    schema = {"properties": {"properties": {"type": "object", "properties": {}}, "b": {"const": {"properties": {}}}}}
    form = StructuredOutputsParams(json=schema, disable_additional_properties=True)
    assert form.schema == {
        "properties": {
            "properties": {"type": "object", "properties": {}, "additionalProperties": False},
            "b": {"const": {"properties": {}}},
        },
        "additionalProperties": False,
    }


# --- the embedded model --------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_json_from_the_embedded_model(default_model: Path, temperature: float) -> None:
    spec = {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4, "prompt_lookup_min": 2}
    asked = "Write this person as JSON with name, age and tags (red, green or blue): Ada is 36 and likes red and blue."
    params = [
        SamplingParams(temperature=temperature, seed=i, max_tokens=60, structured_outputs={"json": PERSON})
        for i in range(2)
    ]
    texts = []
    for drafter in (None, spec):
        llm = make(default_model, drafter, max_model_len=512)
        outputs = llm.chat([[{"role": "user", "content": asked}]] * 2, params, use_tqdm=False)
        texts.append([o.outputs[0].token_ids for o in outputs])
        assert all(is_person(json.loads(o.outputs[0].text)) for o in outputs if o.outputs[0].finish_reason == "stop")
        assert any(o.outputs[0].finish_reason == "stop" for o in outputs)
    assert texts[0] == texts[1]
