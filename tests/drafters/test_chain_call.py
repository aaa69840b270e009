"""A chain drafted in one call of compiled code: the drafts of the drafter that goes step by step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
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


def engine(plain: LLM, in_one_call: bool, confidence: bool = False, blocks: int = 0, **spec: Any) -> LLM:
    room = ROOM | ({"num_gpu_blocks_override": blocks} if blocks else {})
    llm = LLM(str(plain.model_path), weights_of=plain, speculative_config=HEAD | spec, **room)
    drafter: Any = llm.engine.drafter
    if not in_one_call:
        drafter._in_one_call = None
    if confidence:
        drafter.chain.confidence = Confidence(ROOM["max_num_seqs"] + 1, llm.engine.runner.nodes)
        drafter.chain.confidence.prices = Prices(row=0.2, level=0.05)
    return llm


def drafted(llm: LLM) -> tuple[list[list[int]], list[Any]]:
    """The answers, twice, the second time from the prefix cache; and every draft that was left in a slot."""
    seen: list[Any] = []
    leave = llm.engine.runner._leave_pending

    def noted(draft: Any, slots: Any) -> None:
        counts = draft.count.tolist()
        seen.append((slots.tolist(), counts, [line[:n] for line, n in zip(draft.tokens.tolist(), counts, strict=True)]))
        leave(draft, slots)

    llm.engine.runner._leave_pending = noted  # type: ignore[method-assign]
    params = [SamplingParams(temperature=0.7 * (i == 1), seed=i, max_tokens=24, ignore_eos=True) for i in range(4)]
    talks = [[{"role": "user", "content": talk}] for talk in TALKS]
    answers = [out.outputs[0].token_ids for _ in range(2) for out in llm.chat(talks, params, use_tqdm=False)]
    return answers, seen


@pytest.mark.parametrize(("confidence", "blocks"), [(False, 0), (True, 0), (False, 10)])
def test_its_drafts_are_those_of_the_steps(plain: LLM, confidence: bool, blocks: int) -> None:
    """With chains that end early, and with so few blocks that requests are preempted, too."""
    one, steps = (engine(plain, in_one_call, confidence, blocks) for in_one_call in (True, False))
    (text, drafts), (expected, wanted) = drafted(one), drafted(steps)
    assert text == expected
    assert drafts == wanted
    assert sum(sum(counts) for _, counts, _ in drafts) > 50
    assert one.engine.stats.spec.num_accepted_tokens > 10
    if blocks:
        assert one.engine.stats.preemptions > 0


def test_swapped_weights_are_read(plain: LLM) -> None:
    """Its arrays are views: `augury drafter swap` copies another drafter's weights over the loaded ones."""
    llm = engine(plain, in_one_call=True)
    before, _ = drafted(llm)
    head: Any = llm.engine.drafter.network  # type: ignore[union-attr]
    for norm in head.parts.stream_norms:
        norm.zero_()
    seen = llm.engine.stats.spec.num_accepted_tokens
    llm.reset_prefix_cache()
    after, drafts = drafted(llm)
    assert after == before
    assert llm.engine.stats.spec.num_accepted_tokens - seen < seen / 2
    assert np.unique([line for _, _, lines in drafts for line in lines if len(line) == 4], axis=0).size > 0


@pytest.mark.parametrize(
    "spec",
    [
        {"draft_sample_method": "probabilistic"},
        {"speculative_token_tree": "[(0,), (1,), (0, 0)]", "num_speculative_tokens": 3},
    ],
)
def test_other_ways_of_drafting_go_step_by_step(plain: LLM, spec: dict[str, Any]) -> None:
    drafter: Any = engine(plain, in_one_call=True, **spec).engine.drafter
    assert drafter._in_one_call is None
