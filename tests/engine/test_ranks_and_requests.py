"""What requests may ask for besides a temperature, on two ranks: the same answers, scores included."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from parallel_cases import Kept, engine

from augury import LLM, SamplingParams
from augury.config.structured import StructuredOutputsParams

NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1, "prompt_lookup_max": 3}
ASKED: dict[str, dict[str, Any]] = {
    "filtered": {"temperature": 0.9, "top_k": 5, "top_p": 0.9},
    "greedy, with filters that change nothing": {"temperature": 0.0, "top_k": 5},
    "penalties": {"temperature": 0.7, "repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.2},
    "biased": {"temperature": 0.7, "logit_bias": {65: 4.0, 66: -100.0}, "allowed_token_ids": list(range(60, 120))},
    "barred": {"temperature": 0.0, "bad_words": ["ab", "c"], "min_tokens": 4},
    "scored": {"temperature": 0.7, "logprobs": 2, "prompt_logprobs": 1},
    "structured": {"temperature": 0.7, "structured_outputs": StructuredOutputsParams(regex="[a-f ]{6,30}")},
    "expected": {"temperature": 0.0, "extra_args": {"prediction": [64, 65, 66, 64, 65, 66, 70, 71, 72]}},
}


@pytest.fixture(scope="module", autouse=True)
def _one_thread(one_thread_throughout: None) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        yield


@pytest.fixture(scope="module")
def kept(toy_model: Path) -> Iterator[Kept]:
    ranks = Kept(toy_model, 2)
    yield ranks
    ranks.team.close()


def answers(llm: LLM, new: int) -> list[Any]:
    """One by one, then all at once: tokens, and log-probabilities where they were asked for."""
    params = [SamplingParams(max_tokens=new, seed=i, **asked) for i, asked in enumerate(ASKED.values())]
    outputs = [llm.generate("abcabcab", each, use_tqdm=False)[0] for each in params]
    outputs += llm.generate(["abcabcab"] * len(params), params, use_tqdm=False)
    return [(o.outputs[0].token_ids, o.outputs[0].logprobs, o.prompt_logprobs) for o in outputs]


def test_every_kind_of_request(toy_model: Path, kept: Kept) -> None:
    sizes = {"max_num_seqs": 8, "speculative_config": NGRAM}
    together = engine(toy_model, kept, **sizes)
    assert answers(together, 6) == answers(engine(toy_model, None, **sizes), 6)
    together.close()


@pytest.mark.parametrize("rule", ["coupled", "standard"])
def test_grammars_and_predictions_beside_a_drafter_with_weights(toy_model: Path, kept: Kept, rule: str) -> None:
    spec = {
        "method": "draft_model",
        "model": str(toy_model),
        "num_speculative_tokens": 3,
        "rejection_sample_method": rule,
        "draft_sample_method": "probabilistic",
    }
    few = {name: ASKED[name] for name in ("structured", "expected")}
    params = [SamplingParams(**{**asked, "max_tokens": 8, "temperature": 0.7, "seed": 5}) for asked in few.values()]
    texts = []
    for ranks in (kept, None):
        llm = engine(toy_model, ranks, max_num_seqs=2, speculative_config=spec)
        texts.append([o.outputs[0].token_ids for o in llm.generate(["abcabcab"] * 2, params, use_tqdm=False)])
        if ranks is not None:
            llm.close()
    assert texts[0] == texts[1]


def test_little_room_and_long_prompts(toy_model: Path, kept: Kept) -> None:
    """Preemption, chunks, prefixes found again, and a controller that decides by the clock."""
    auto = {"method": "draft_model", "model": str(toy_model), "num_speculative_tokens": "auto"}
    sizes = {"max_num_batched_tokens": 16, "num_gpu_blocks_override": 12, "block_size": 8, "max_model_len": 80}
    prompts = ["abcdefgh" * 4, "abcdefgh" * 4 + "ij", "hello hello hello hello", "z"]
    params = [SamplingParams(temperature=0.7, seed=i, max_tokens=12, ignore_eos=True) for i in range(4)]
    together, alone = engine(toy_model, kept, **sizes, speculative_config=auto), engine(toy_model, None, **sizes)
    for _ in range(2):
        got, want = (llm.generate(prompts, params, use_tqdm=False) for llm in (together, alone))
        assert [o.outputs[0].token_ids for o in got] == [o.outputs[0].token_ids for o in want]
    assert together.engine.stats.preemptions > 0
    together.close()
