"""Prefixes that the cache gave up come back from host memory, with the text and the drafts of those that never left."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from generating import DEVICE, ids
from hybrid_cases import save_hybrid
from hypothesis import given
from hypothesis import strategies as st
from mtp_cases import BY_NAME, make_layers, with_layer
from random_drafters import drafter

from augury import LLM, SamplingParams
from augury.config.errors import ConfigError
from augury.engine.host_lines import HostLines
from augury.engine.offload import Offload
from augury.model.checkpoint import read_config
from augury.observe.stats import EngineStats

pytestmark = pytest.mark.usefixtures("one_thread_throughout")
NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3, "prompt_lookup_min": 1}
A, B, C = (
    {"prompt_token_ids": [(7 * i + start) % 90 + 3 for i in range(40)] + [start + 3] * 8} for start in (1, 30, 61)
)
BLOCK, SMALL, LARGE = 4, 21, 200  # blocks of the caches: one request of 68 tokens, or all of them
PARAMS = SamplingParams(max_tokens=16, temperature=0.8, seed=5, ignore_eos=True)


def make(model: Path, blocks: int, **options: Any) -> LLM:
    sizes = {"block_size": BLOCK, "max_model_len": 72, "max_num_seqs": 2, "num_gpu_blocks_override": blocks}
    return LLM(str(model), device=DEVICE, **{**sizes, **options})


def guesses(llm: LLM, prompt: Any) -> tuple[list[int], list[list[int]]]:
    """The answer, and every draft that was made for it."""
    drafted: list[list[int]] = []
    drafter = llm.engine.drafter
    if drafter is None:
        return ids(llm, [prompt], PARAMS)[0], []
    propose = type(drafter).propose

    def noted(inputs: Any) -> Any:
        draft = propose(drafter, inputs)
        drafted.extend(line[:n] for line, n in zip(draft.tokens.tolist(), draft.count.tolist(), strict=True) if n)
        return draft

    drafter.propose = noted  # type: ignore[method-assign]
    try:
        return ids(llm, [prompt], PARAMS)[0], drafted
    finally:
        del drafter.propose  # type: ignore[method-assign]


def speculation(kind: str, toy_model: Path, tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    """A target and a way to draft for it."""
    if kind == "plain":
        return toy_model, {}
    if kind == "ngram":
        return toy_model, {"speculative_config": NGRAM}
    if kind == "mtp":  # several layers, which hand states to each other
        torch.manual_seed(1)
        target = with_layer(toy_model, tmp_path, make_layers(read_config(toy_model), BY_NAME["DeepSeek"], 2))
        return target, {"speculative_config": {"method": "mtp", "num_speculative_tokens": 2}}
    head = drafter(toy_model, "eagle3" if kind == "hybrid" else kind, 3, tmp_path / "head")
    spec: Any = {"method": kind, "model": str(head), "num_speculative_tokens": 3}
    return toy_model, {"speculative_config": [NGRAM, {**spec, "method": "eagle3"}] if kind == "hybrid" else spec}


@pytest.mark.parametrize("kind", ["plain", "ngram", "eagle3", "draft_model", "dflash", "mtp", "hybrid"])
def test_a_prefix_comes_back(kind: str, toy_model: Path, tmp_path: Path) -> None:
    model, options = speculation(kind, toy_model, tmp_path)
    roomy, cramped = make(model, LARGE, **options), make(model, SMALL, kv_offloading_size=0.01, **options)
    for prompt in (A, B, C):
        assert guesses(cramped, prompt) == guesses(roomy, prompt)
    stats = cramped.engine.stats
    assert stats.external_prefix_cache_hits == 0 < stats.offloaded_blocks
    for turn, prompt in enumerate((A, B, A), 1):  # gone from the device by now, all but a few blocks
        assert guesses(cramped, prompt) == guesses(roomy, prompt)
        found = stats.external_prefix_cache_hits
        assert stats.prefix_cache_hits + found == 44 * turn and found >= 36 * turn  # the last block has to be run
    assert roomy.engine.stats.prefix_cache_hits == 44 * 3
    assert stats.external_prefix_cache_queries == 6 * 48 - stats.prefix_cache_hits and stats.damaged_blocks == 0
    cramped.reset_prefix_cache()
    guesses(cramped, B)
    assert stats.external_prefix_cache_hits == found
    cramped.engine.scheduler.check()


def test_a_damaged_block_is_read_again(toy_model: Path) -> None:
    want = ids(make(toy_model, LARGE), [A], PARAMS)
    llm = make(toy_model, SMALL, kv_offloading_size=0.01)
    for prompt in (A, B):
        ids(llm, [prompt], PARAMS)
    offload = llm.engine.scheduler.sharing.offload
    assert offload is not None
    offload._lines._lines[list(offload._line_of.values())] ^= 1 << 40
    assert ids(llm, [A], PARAMS) == want
    assert llm.engine.stats.damaged_blocks == 1 and llm.engine.stats.external_prefix_cache_hits == 0
    assert ids(llm, [B], PARAMS) == ids(make(toy_model, LARGE), [B], PARAMS)


def test_many_at_once_and_preempted(toy_model: Path) -> None:
    """More conversations than the device holds, turn by turn: the text of plain decoding with room for all."""
    params = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True)
    roomy = make(toy_model, LARGE)
    cramped = make(toy_model, 27, kv_offloading_size=0.01, speculative_config=NGRAM, max_num_seqs=3)
    texts = [[start + 3] * 3 + [(5 * i + start) % 90 + 3 for i in range(13)] for start in range(6)]
    for _ in range(4):
        prompts = [{"prompt_token_ids": text} for text in texts]
        answers = ids(roomy, prompts, params)
        assert ids(cramped, prompts, params) == answers
        texts = [text + answer for text, answer in zip(texts, answers, strict=True)]
    stats = cramped.engine.stats
    assert stats.external_prefix_cache_hits > 300 and stats.preemptions > 0


def test_lines_hold_any_type() -> None:
    """Rows and blocks, types of every size, and parts that are no whole words."""
    torch.manual_seed(0)
    stores = [torch.rand(6 * 2, 3), torch.rand(6 * 2, 1, 5).bfloat16(), torch.rand(6, 7).half(), torch.rand(6, 3) > 0.5]
    lines = HostLines(stores, 6, 1000)
    assert lines.line_bytes == 24 + 24 + 16 + 8 and lines.num_lines == 1000 // 72
    was = [store.clone() for store in stores]
    lines.store([4, 1], [0, 7])
    for store in stores:
        store.zero_()
    assert lines.whole(0) and lines.whole(7)
    lines.load([7, 0], [1, 4])
    for store, before in zip(stores, was, strict=True):
        kept = before.view(6, -1).clone()
        kept[[0, 2, 3, 5]] = 0
        assert torch.equal(store.view(6, -1), kept)


@given(st.lists(st.tuples(st.booleans(), st.lists(st.integers(0, 9), max_size=5, unique=True)), max_size=30))
def test_what_was_used_last_stays(told: list[tuple[bool, list[int]]]) -> None:
    """Names against a list that is kept in order of use; what is loaded is what was stored under its name."""
    store = torch.zeros(12, 2, dtype=torch.int64)
    offload = Offload(HostLines([store], 12, 4 * 16), EngineStats())
    model: OrderedDict[int, None] = OrderedDict()
    for keeps, numbers in told:
        names = [bytes([n]) for n in numbers]
        if keeps:
            for n in numbers:
                store[n] = n + 100
            offload.keep(list(zip(numbers, names, strict=True)))
            for n in numbers:
                model.pop(n, None)
                model[n] = None
                if len(model) > 4:
                    model.popitem(last=False)
        else:
            run = next((i for i, n in enumerate(numbers) if n not in model), len(numbers))
            assert offload.bring_back(names, [10 - i for i in range(len(numbers))]) == run
            assert [int(store[10 - i, 0]) for i in range(run)] == [n + 100 for n in numbers[:run]]
            for n in reversed(numbers[:run]):
                model.move_to_end(n)
        offload.check()
        assert offload.num_kept == len(model)


def test_what_it_does_not_go_with_is_refused_by_name(toy_model: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"kv_offloading_size=1\.0 keeps prefixes, and enable_prefix_caching is off"):
        make(toy_model, SMALL, kv_offloading_size=1, enable_prefix_caching=False)
    with pytest.raises(ConfigError, match=r"no room for one block of 4 tokens \(\d.\d MiB\); raise it"):
        make(toy_model, SMALL, kv_offloading_size=1e-9)
    with pytest.raises(ConfigError, match="more than this machine's memory"):
        make(toy_model, SMALL, kv_offloading_size=1e9)
    with pytest.raises(ConfigError, match="kv_offloading_backend='lmcache': input should be 'native'"):
        make(toy_model, SMALL, kv_offloading_size=1, kv_offloading_backend="lmcache")
    with pytest.raises(ConfigError, match="cannot be combined with tensor_parallel_size=2 yet"):
        make(toy_model, SMALL, kv_offloading_size=1, tensor_parallel_size=2)
    save_hybrid("qwen3-next", tmp_path)
    with pytest.raises(ConfigError, match="cannot be combined with recurrent layers yet"):
        make(tmp_path, SMALL, kv_offloading_size=1)
