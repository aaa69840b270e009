"""A chain drafted in one call of compiled code: the drafts of the drafter that goes step by step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from shipped import SHIPPED

from augury import LLM, SamplingParams
from augury.drafters.confidence import Confidence, Prices

HEAD = {"method": "eagle3", "model": str(SHIPPED / "eagle3"), "num_speculative_tokens": 4}
ROOM: dict[str, Any] = {"device": "cpu", "max_model_len": 128, "max_num_seqs": 3}
TALKS = ["Name three rivers.", "Write a Python function that adds two numbers.", "What is 3 * 4?", "Name three rivers."]


@pytest.fixture(scope="module")
def plain(default_model: Path) -> LLM:
    return LLM(str(default_model), **ROOM)


def engine(plain: LLM, blocks: int = 0, **spec: Any) -> LLM:
    room = ROOM | ({"num_gpu_blocks_override": blocks} if blocks else {})
    return LLM(str(plain.model_path), weights_of=plain, speculative_config=HEAD | spec, **room)


@pytest.fixture(scope="module")
def roomy(plain: LLM) -> LLM:
    return engine(plain)


def drafted(llm: LLM, confidence: bool = False) -> tuple[list[list[int]], list[Any]]:
    """The answers, twice, the second time from the prefix cache; and the drafts that every pass left in slots."""
    seen: list[Any] = []
    runner, drafter = llm.engine.runner, llm.engine.drafter
    leave = runner._leave_pending

    def noted(draft: Any, slots: Any) -> None:
        lines = zip(draft.tokens.tolist(), draft.count.tolist(), strict=True)
        seen.append(sorted(line[:count] for line, count in lines))  # which slot a request gets depends on those before
        leave(draft, slots)

    judge = Confidence(ROOM["max_num_seqs"] + 1, runner.nodes)
    judge.prices = Prices(row=0.2, level=0.05)
    drafter.chain.confidence = judge if confidence else None  # type: ignore[union-attr]
    params = [SamplingParams(temperature=0.7 * (i == 1), seed=i, max_tokens=16, ignore_eos=True) for i in range(4)]
    talks = [[{"role": "user", "content": talk}] for talk in TALKS]
    llm.reset_prefix_cache()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(runner, "_leave_pending", noted)
        answers = [out.outputs[0].token_ids for _ in range(2) for out in llm.chat(talks, params, use_tqdm=False)]
    return answers, seen


def held_to_steps(llm: LLM, other: LLM, confidence: bool) -> None:
    """The same texts and drafts, in one call and, by the other engine, step by step."""
    text, drafts = drafted(llm, confidence)
    drafter: Any = other.engine.drafter
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(drafter, "_in_one_call", None)
        expected, wanted = drafted(other, confidence)
    assert text == expected
    assert drafts == wanted
    assert sum(len(draft) for left in drafts for draft in left) > 50


@pytest.mark.parametrize("confidence", [False, True])
def test_its_drafts_are_those_of_the_steps(roomy: LLM, confidence: bool) -> None:
    """Whole chains, and chains that end early."""
    held_to_steps(roomy, roomy, confidence)
    assert roomy.engine.stats.spec.num_accepted_tokens > 10


def test_requests_that_are_preempted_are_drafted_for_alike(plain: LLM) -> None:
    """By two engines: what the cache of one still holds decides what is found in it, and so what is drafted."""
    tight = engine(plain, blocks=10)
    held_to_steps(tight, engine(plain, blocks=10), confidence=False)
    assert tight.engine.stats.preemptions > 0


def test_swapped_weights_are_read(roomy: LLM) -> None:
    """Its arrays are views: `augury drafter swap` copies another drafter's weights over the loaded ones."""
    before, drafts = drafted(roomy)
    head: Any = roomy.engine.drafter.network  # type: ignore[union-attr]
    kept = [norm.clone() for norm in head.parts.stream_norms]
    for norm in head.parts.stream_norms:
        norm.zero_()
    after, others = drafted(roomy)
    for norm, old in zip(head.parts.stream_norms, kept, strict=True):
        norm.copy_(old)
    assert after == before and others != drafts
    assert drafted(roomy) == (before, drafts)


@pytest.mark.parametrize(
    "spec",
    [
        {"draft_sample_method": "probabilistic"},
        {"speculative_token_tree": "[(0,), (1,), (0, 0)]", "num_speculative_tokens": 3},
    ],
)
def test_other_ways_of_drafting_go_step_by_step(plain: LLM, roomy: LLM, spec: dict[str, Any]) -> None:
    assert roomy.engine.drafter._in_one_call is not None  # type: ignore[union-attr]
    assert engine(plain, **spec).engine.drafter._in_one_call is None  # type: ignore[union-attr]
