"""Look-ups between two passes: the same text at either depth, passes that overlap while nobody drafts, nothing lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from generating import DEVICE, PROMPTS

from augury import LLM, SamplingParams
from augury.engine.request import Request
from augury.engine.scheduled import CONTINUES

pytestmark = pytest.mark.usefixtures("one_thread_throughout")
NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3, "prompt_lookup_min": 1}
SPECS: dict[str, Any] = {
    "ngram": NGRAM,
    "suffix": {"method": "suffix", "num_speculative_tokens": 4},
    "suffix tree": {"method": "suffix", "num_speculative_tokens": 4, "tree": {"max_nodes": 8, "top_k": 2}},
    "both": [NGRAM, {"method": "suffix", "num_speculative_tokens": 4}],
}


class Paced:
    """Drafts in `on` passes of every `of`, and nobody drafts in the others."""

    def __init__(self, nodes: int, on: int, of: int) -> None:
        self.nodes, self.on, self.of, self.passes = nodes, on, of, 0
        self.sampling = False

    def allow(self, requests: list[Request], rows: int) -> list[int]:
        self.passes += 1
        return [self.nodes if self.passes % self.of < self.on else 0] * len(requests)

    def seat(self, request: Request) -> None:
        pass

    def see(self, request: Request, depth: int, accepted: int) -> None:
        pass

    def learn(self, step: Any) -> None:
        pass


def engine(model: Path, spec: Any, depth: int, on: int) -> LLM:
    llm = LLM(str(model), device=DEVICE, speculative_config=spec, max_model_len=256, max_num_seqs=4)
    llm.engine.depth, llm.engine.state.tracks = depth, True
    llm.engine.budget = Paced(llm.engine.runner.nodes, on, 9)
    return llm


def asked(llm: LLM, temperature: float) -> tuple[list[list[int]], int]:
    """The answers, and how many passes were launched before the one before them had landed."""
    plan, continued = llm.engine.scheduler.plan, 0

    def counted() -> Any:
        nonlocal continued
        scheduled = plan()
        continued += any(item.start == CONTINUES for item in scheduled)
        return scheduled

    llm.engine.scheduler.plan = counted  # type: ignore[method-assign]
    params = [SamplingParams(temperature=temperature, seed=i, max_tokens=48, ignore_eos=True) for i in range(6)]
    answers = llm.generate([PROMPTS[i % len(PROMPTS)] for i in range(6)], params, use_tqdm=False)
    llm.engine.scheduler.plan = plan  # type: ignore[method-assign]
    return [list(answer.outputs[0].token_ids) for answer in answers], continued


@pytest.mark.parametrize("spec", SPECS)
def test_the_same_text_whoever_drafts_and_when(toy_model: Path, spec: str) -> None:
    plain = LLM(str(toy_model), device=DEVICE, max_model_len=256, max_num_seqs=4)
    always, now_and_then = (engine(toy_model, SPECS[spec], 1, on) for on in (9, 3))
    for temperature in (0.0, 0.8):
        want, _ = asked(plain, temperature)
        assert asked(always, temperature) == (want, 0)  # drafts need the pass before them
        text, overlapping = asked(now_and_then, temperature)
        assert text == want and overlapping > 10
    for llm in (always, now_and_then):
        assert llm.engine.stats.spec.num_accepted_tokens > 0


def test_a_cache_that_rested_has_every_answer(toy_model: Path) -> None:
    llm = engine(toy_model, SPECS["suffix"], 1, 0)
    answers, overlapping = asked(llm, 0.8)
    assert overlapping > 10 and llm.engine.stats.spec.num_drafts == 0
    drafter: Any = llm.engine.drafter
    kept = [text.tolist() for _, _, text in drafter.cache.responses()]
    assert sorted(kept) == sorted(answers)
