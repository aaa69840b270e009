"""Per-request speculation and traces with chains and trees, offline: the text never changes, the trace adds up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from shallow import shallow_copy

from augury import LLM, SamplingParams

CHAIN = {"method": "draft_model", "num_speculative_tokens": 3}
TREE = {**CHAIN, "tree": {"top_k": 2, "max_nodes": 8}}
PROMPT = "abcabcabc"


@pytest.fixture(scope="module", params=[CHAIN, TREE], ids=["chain", "tree"])
def llm(request: pytest.FixtureRequest, toy_model: Path, tmp_path_factory: pytest.TempPathFactory) -> LLM:
    drafter = shallow_copy(toy_model, [0], tmp_path_factory.mktemp("drafter"))
    return LLM(toy_model, device="cpu", speculative_config={**request.param, "model": str(drafter)})


def params(**wish: Any) -> SamplingParams:
    extra = {"speculative": wish} if wish else None
    return SamplingParams(max_tokens=120, temperature=0.7, seed=3, ignore_eos=True, extra_args=extra)


def test_less_drafting_is_the_same_text(llm: LLM) -> None:
    wanted = llm.generate(PROMPT, params(), use_tqdm=False)[0].outputs[0]
    figures = wanted.spec_decode_metrics or {}
    assert figures["num_draft_tokens"] > 2 * figures["num_spec_steps"]
    for most in (0, 1, 2):
        together = llm.generate([PROMPT, PROMPT], [params(num_speculative_tokens=most), params()], use_tqdm=False)
        less, free = (output.outputs[0] for output in together)
        assert less.text == free.text == wanted.text
        bounded = less.spec_decode_metrics or {}
        assert bounded["num_draft_tokens"] <= most * bounded["num_spec_steps"]
        assert bool(bounded["num_draft_tokens"]) == bool(most)
        assert (free.spec_decode_metrics or {})["num_draft_tokens"] > 2 * figures["num_spec_steps"]


def test_a_trace_adds_up(llm: LLM) -> None:
    tokens, origins = [], set()
    for update in llm.stream(PROMPT, params(trace=True)):
        step = update.trace
        assert step is not None and [t["id"] for t in step["tokens"]] == update.tokens
        tokens += update.tokens
        origins |= {t["from"] for t in step["tokens"]}
        draft = step.get("draft")
        if draft is None:
            assert [t["from"] for t in step["tokens"]] == ["plain"]
            continue
        path, above = draft["accepted"], [-1, *draft["accepted"]]
        assert [draft["parents"][node] for node in path] == above[:-1]
        assert [draft["ids"][node] for node in path][: len(update.tokens)] == update.tokens[: len(path)]
        if len(update.tokens) > len(path):
            rejected = {draft["ids"][i] for i, parent in enumerate(draft["parents"]) if parent == above[-1]}
            last = step["tokens"][-1]
            assert last["from"] == ("correction" if rejected else "plain") and last["id"] not in rejected
            assert last.get("bonus", False) == (not rejected)
        for parent in {-1, *draft["parents"]}:  # one law for all children of a node
            assert sum(p for p, above in zip(draft["probs"], draft["parents"], strict=True) if above == parent) <= 1.001
    assert len(tokens) == 120 and origins == {"plain", "draft", "correction"}
    assert tokens == llm.generate(PROMPT, params(), use_tqdm=False)[0].outputs[0].token_ids


def test_the_step_says_what_the_pass_did(llm: LLM) -> None:
    drafted = accepted = written = 0
    for _ in llm.stream(PROMPT, params()):
        step = llm.engine.last
        drafted += sum(nodes for nodes, _, _ in step.drafts)
        accepted += sum(taken for _, taken, _ in step.drafts)
        written += step.generation_tokens
        assert step.requests == 1 and step.begun > 0
        assert step.rows == step.prompt_rows + (step.prompt_rows == 0) + sum(nodes for nodes, _, _ in step.drafts)
    assert written == 120 and drafted > accepted > 0


def test_tokens_past_a_stop_are_not_in_the_trace(llm: LLM) -> None:
    text = llm.generate(PROMPT, params(), use_tqdm=False)[0].outputs[0].text
    asked = params(trace=True).clone(stop=[text[10:12]])
    updates = list(llm.stream(PROMPT, asked))
    request = updates[-1].request
    assert request.finish_reason == "stop"
    assert [t["id"] for u in updates for t in (u.trace or {})["tokens"]] == request.output
