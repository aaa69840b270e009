"""Engines of 2 and 4 ranks say, token for token and draft for draft, what one rank says."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from dense_cases import FAMILIES, save_random
from parallel_cases import ALL_GREEDY, GATHERED, MIXED, Kept, drafters, engine, said, write_mtp

from augury import LLM, SamplingParams
from augury.engine.budget import FixedBudget

TREE = {"max_nodes": 6, "top_k": 2}
NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1, "prompt_lookup_max": 3}
CASES: dict[str, dict[str, Any] | None] = {
    "plain": None,
    "look-ups": NGRAM,
    "EAGLE-3, chain": {"method": "eagle3", "num_speculative_tokens": 3},
    "EAGLE-3, tree": {"method": "eagle3", "num_speculative_tokens": 3, "tree": TREE},
    "EAGLE-3, whole on every rank": {"method": "eagle3", "num_speculative_tokens": 3, "draft_tensor_parallel_size": 1},
    "draft model, chain": {"method": "draft_model", "num_speculative_tokens": 3},
    "draft model, tree": {"method": "draft_model", "num_speculative_tokens": 3, "tree": TREE},
    "EAGLE": {"method": "eagle", "num_speculative_tokens": 2},
    "Medusa": {"method": "medusa", "num_speculative_tokens": 2},
    "MLP": {"method": "mlp_speculator", "num_speculative_tokens": 2},
    "MTP": {"method": "mtp", "num_speculative_tokens": 1},
    "rejection": {"method": "draft_model", "num_speculative_tokens": 2, "rejection_sample_method": "standard"},
}
SEVERAL = ("plain", "look-ups", "EAGLE-3, chain", "EAGLE-3, tree", "draft model, chain", "draft model, tree")
FILTERING = ("plain", "draft model, chain", "rejection")


@pytest.fixture(scope="module", autouse=True)
def _one_thread(one_thread_throughout: None) -> Iterator[None]:
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"  # of each rank: there may be more ranks than cores
    yield
    del os.environ["OMP_NUM_THREADS"]
    if before is not None:
        os.environ["OMP_NUM_THREADS"] = before


@pytest.fixture(scope="module")
def kept(toy_model: Path) -> Iterator[dict[int, Kept]]:
    ranks = {size: Kept(toy_model, size) for size in (2, 4)}
    yield ranks
    for each in ranks.values():
        each.team.close()


@pytest.fixture(scope="module")
def heads(toy_model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    directory = tmp_path_factory.mktemp("heads")
    return drafters(toy_model, directory) | {"mtp": write_mtp(toy_model, directory / "mtp")}


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    """What one rank has said, by case."""
    return {}


def built(case: str, toy_model: Path, heads: dict[str, Path], ranks: Kept | None) -> LLM:
    spec = dict(CASES[case] or {})
    model = heads["mtp"] if spec.get("method") == "mtp" else toy_model
    if spec.get("method") in heads and spec["method"] != "mtp":
        spec["model"] = str(heads[spec["method"]])
    if ranks is None:
        spec.pop("draft_tensor_parallel_size", None)
    return engine(model, ranks, speculative_config=spec or None)


@pytest.mark.parametrize(("size", "case"), [(4, case) for case in CASES] + [(2, case) for case in SEVERAL])
def test_ranks_say_what_one_says(
    size: int, case: str, toy_model: Path, heads: dict[str, Path], kept: dict[int, Kept], alone: dict[str, Any]
) -> None:
    batches = [MIXED] + [ALL_GREEDY] * (case == "plain") + [GATHERED] * (case in FILTERING)
    if case not in alone:
        alone[case] = said(built(case, toy_model, heads, None), *batches)
    together = built(case, toy_model, heads, kept[size])
    assert said(together, *batches) == alone[case]
    together.close()


@pytest.mark.parametrize("case", ["EAGLE-3, chain", "draft model, chain"])
def test_ranks_rest_together(case: str, toy_model: Path, heads: dict[str, Path], kept: dict[int, Kept]) -> None:
    """A turn is answered without drafts; the next finds its blocks, and drafts as one rank that never rested."""
    told = []
    for ranks in (None, kept[2]):
        llm = built(case, toy_model, heads, ranks)
        if ranks is not None:
            llm.engine.runner.let_rest()
        llm.engine.budget, params = FixedBudget(0), SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
        texts = [[65 + i, 66, 67] for i in range(3)]
        answers = llm.generate(texts, params, use_tqdm=False)
        llm.engine.budget = FixedBudget(3)
        texts = [text + list(out.outputs[0].token_ids) for text, out in zip(texts, answers, strict=True)]
        told.append(said(llm, ALL_GREEDY, prompts=texts))
        assert llm.engine.stats.prefix_cache_hits == 3 * 32
        llm.close()
    assert told[0] == told[1]


def test_ranks_of_uneven_shares_have_as_many_blocks(tmp_path: Path, kept: dict[int, Kept]) -> None:
    """Of three keys one rank has two: its cache holds half as many tokens in the same memory."""
    save_random(FAMILIES["llama-odd-sizes"], tmp_path)
    sizes: dict[str, Any] = {"skip_tokenizer_init": True, "block_size": 8, "max_model_len": 64}
    prompts: list[Any] = [[3 + i, 5, 7, 9] * 9 for i in range(3)]
    params = [
        SamplingParams(temperature=0.8, seed=i, max_tokens=12, ignore_eos=True, detokenize=False) for i in range(3)
    ]
    together = engine(tmp_path, kept[2], **sizes, kv_cache_memory_bytes=10 * 8 * 1152)
    alone = engine(tmp_path, None, **sizes)
    got, want = (llm.generate(prompts, params, use_tqdm=False) for llm in (together, alone))
    assert [o.outputs[0].token_ids for o in got] == [o.outputs[0].token_ids for o in want]
    assert together.engine.scheduler.pool.num_blocks == 10 and together.engine.stats.preemptions > 0
    together.close()
