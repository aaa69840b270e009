"""Structured output from within: masks node by node, drafts pruned, what is refused."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from draw_oracle import NEVER, Oracle, scenario
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from probs_oracle import wrong_law
from structured import EOS, NGRAM, answers, make
from torch import Tensor

from augury import LLM, SamplingParams, StructuredOutputsParams
from augury.config.errors import ConfigError
from augury.engine.grammar import Grammar, Grammars
from augury.kernels import verify, verify_numba, verify_probs, verify_probs_numba
from augury.verify.sampling import Masks

SOME = settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])


@pytest.fixture(scope="module")
def plain(toy_model: Path) -> LLM:
    return make(toy_model)


@pytest.fixture(scope="module")
def ngram(toy_model: Path) -> LLM:
    return make(toy_model, NGRAM)


@pytest.fixture(scope="module")
def grammars(plain: LLM) -> Grammars:
    return Grammars(plain.tokenizer, 260)


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
    run = llm.engine.runner.run
    llm.engine.runner.run = lambda work: rows.append(work.logits_rows) or run(work)  # type: ignore[method-assign,func-returns-value]
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
)
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
    before = dict(grammars.pool.counts)
    for form in ({"json": {"type": "null"}}, {"json": '{"type": "null"}'}, {"json": {"type": "null"}}):
        grammars.start(SamplingParams(structured_outputs=form))
    after = grammars.pool.counts
    assert after["compiled"] - before["compiled"] == 1
    assert after["reused"] - before["reused"] == 2


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
