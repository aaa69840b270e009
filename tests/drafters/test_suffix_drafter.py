"""`suffix` as a drafter: drafts equal the slow cache's, text equals plain decoding's, tenants stay apart."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from suffix_oracle import SlowCache

from augury import LLM, SamplingParams
from augury.config.errors import ConfigError
from augury.config.resolve import resolve
from augury.config.speculative import SpeculativeConfig
from augury.drafters.base import DrafterSetup
from augury.drafters.suffix import SuffixDrafter
from augury.index.store import save
from augury.index.suffix import SuffixCache
from augury.index.suffix_rule import SuffixRule

REPEATABLE = settings(deadline=None, derandomize=True, max_examples=150)

PROMPTS = ["abcabcabc", "hello hello", "the cat sat on the mat and the cat sat", "12121"]


def config(tree: object = None, **keys: object) -> SpeculativeConfig:
    wanted = {"method": "suffix", "num_speculative_tokens": 6, **keys}
    parsed = resolve(wanted | ({"tree": tree} if tree else {}))
    assert parsed is not None
    return parsed


def setting(longest: int) -> DrafterSetup:
    return DrafterSetup(None, 8, longest, "float32", Path())  # type: ignore[arg-type]


def propose(drafter: SuffixDrafter, texts: dict[int, list[int]], budget: int = 6) -> list[list[int]]:
    """Drafts for the slots given, whose history is padded with something misleading; newcomers are admitted first."""
    for slot, text in texts.items():
        if slot not in drafter._admitted and text:
            drafter.admit(slot, len(text) - 1, 0, "", f"{slot}, {text}")
    history = torch.full((6, 80), 3)
    for slot, text in texts.items():
        history[slot, : len(text)] = torch.tensor(text)
    lengths = torch.tensor([len(t) for t in texts.values()])
    draft = drafter.draft(torch.tensor(list(texts)), lengths, history, torch.full((len(texts),), budget))
    return [draft.tokens[g, : draft.count[g]].tolist() for g in range(len(texts))]


@settings(REPEATABLE, max_examples=60)
@given(
    steps=st.lists(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=3), min_size=3, max_size=3), max_size=6),
    prompts=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=8), min_size=3, max_size=3),
    width=st.sampled_from([0, 3]),
)
def test_drafter_equals_the_slow_cache(steps: list[list[list[int]]], prompts: list[list[int]], width: int) -> None:
    """Three slots, several tokens a step; slot 1 changes hands half-way."""
    tree = {"max_nodes": 6, "top_k": width} if width else None
    drafter = SuffixDrafter(config(tree=tree, suffix_decoding_max_tree_depth=6), setting(1000))
    assert drafter.branching == bool(width)
    slow, texts, names = SlowCache(6, 10_000), {}, {}
    for slot, prompt in enumerate(prompts):
        drafter.admit(slot, len(prompt), 0, "ab"[slot % 2], f"s{slot}")
        texts[slot], names[slot] = list(prompt), f"s{slot}"
        slow.start(names[slot], prompt, "ab"[slot % 2])
    for number, step in enumerate(steps):
        if number == 3:
            drafter.reset(1)
            drafter.admit(1, len(prompts[0]), 0, "a", "again")
            slow.stop("s1")
            texts[1], names[1] = list(prompts[0]), "again"
            slow.start("again", prompts[0], "a")
        for slot, tokens in enumerate(step):
            texts[slot] += tokens
            slow.append(names[slot], tokens)
        drafts = propose(drafter, texts)
        wanted = [slow.speculate(names[slot], None, 6, 1.0, 0.0, 0.1, width or 1).tokens for slot in texts]
        assert drafts == wanted


def test_drafter_learns_from_past_answers() -> None:
    drafter = SuffixDrafter(config(), setting(1000))
    assert propose(drafter, {2: [9, 8, 1]}) == [[]]
    assert propose(drafter, {2: [9, 8, 1, 2, 0, 5, 6]}) == [[]]
    drafter.reset(2)
    assert propose(drafter, {4: [7, 7, 7, 1], 0: [8, 1, 2]}) == [[2], [0, 5]]
    assert propose(drafter, {4: [7, 7, 7, 1], 0: []}) == [[2], []]  # nobody's group leaves its slot alone
    assert propose(drafter, {4: [3, 9]}) == [[]]  # a shorter text: its prompt is still being read
    drafter.admit(5, 4, 0, "", "chunked")
    assert propose(drafter, {5: [8, 1, 2]}) == [[]]  # so is this one, and nothing of it is taken for an answer
    assert propose(drafter, {5: [8, 1, 2, 8, 1]}) == [[2, 8]]  # the prompt's own words
    drafter.reset(5)
    assert drafter.cache.count([8, 1]) == 0


def test_drafter_keeps_a_preempted_answer_once() -> None:
    drafter = SuffixDrafter(config(), setting(1000))
    for slot in (1, 3):  # the same request is seated twice
        drafter.admit(slot, 2, 0, "t", "r")
        propose(drafter, {slot: [9, 8, 1, 2, 0]})
        drafter.reset(slot)
    assert drafter.cache.count([1, 2], "t") == 1
    assert drafter.cache.count([9], "t") == 0


def test_drafter_respects_budget_and_longest_text() -> None:
    text = [1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4, 5, 6]
    lengths = {}
    for limit in (15, 16, 17, 80):
        drafter = SuffixDrafter(config(), setting(limit))
        lengths[limit] = len(propose(drafter, {0: text})[0])
    assert lengths == {15: 0, 16: 1, 17: 2, 80: 6}
    assert len(propose(SuffixDrafter(config(), setting(80)), {0: text}, budget=2)[0]) == 2


def test_step_refuses_bad_tokens_before_touching_anything() -> None:
    cache = SuffixCache()
    handle = cache.start("a", [1, 2, 1])
    book, rows, one = np.array([handle]), np.array([0]), np.array([4])
    out = np.zeros((1, 4), np.int64), np.zeros((1, 4), np.int64), np.zeros(1, np.int64)
    for wrong in (2**31, -5):
        history = np.array([[1, 2, 1, wrong]])
        with pytest.raises(ValueError, match="negative or above"):
            cache.step(book, history, rows, one, np.array([4]), 99, SuffixRule(), *out)
    with pytest.raises(ValueError, match="shorter"):
        cache.step(book, history, rows, np.array([2]), np.array([4]), 99, SuffixRule(), *out)
    assert cache.speculate("a").tokens == [2]


def served(toy_model: Path, **settings: object) -> list[list[int]]:
    llm = LLM(str(toy_model), device="cpu", **{"max_model_len": 256, **settings})  # type: ignore[arg-type]
    params = [SamplingParams(temperature=0.7, seed=i, max_tokens=60, ignore_eos=True) for i in range(4)]
    texts = [o.outputs[0].token_ids for o in llm.generate(PROMPTS, params, use_tqdm=False)]
    again = [o.outputs[0].token_ids for o in llm.generate(PROMPTS, params, use_tqdm=False)]
    assert again == texts
    if "num_gpu_blocks_override" in settings:
        assert llm.engine.stats.preemptions > 0
    return texts


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"suffix_decoding_max_cached_bytes": 1},
        {"suffix_decoding_max_cached_bytes": 5000},
        {"suffix_decoding_max_cached_requests": 0},
        {"num_speculative_tokens": 1, "suffix_decoding_max_tree_depth": 1},
        {"tree": {"max_nodes": 16, "top_k": 3}},
    ],
    ids=str,
)
def test_text_is_that_of_plain_decoding(toy_model: Path, options: dict[str, object]) -> None:
    spec = {"method": "suffix", **options}
    crowded = {"num_gpu_blocks_override": 18, "max_num_seqs": 4, "max_num_batched_tokens": 16}
    want = served(toy_model)
    assert served(toy_model, speculative_config=spec) == want
    assert served(toy_model, speculative_config=spec, **crowded) == want  # chunks, and requests put off their slots


def test_an_engine_starts_from_a_saved_cache(toy_model: Path, tmp_path: Path) -> None:
    """Answers of another day are drafted from; ids that the target does not have are not."""
    want = served(toy_model)
    cache = SuffixCache()
    cache.build([[*text, 150_000, 2**31 - 1] for text in want])
    cache.build([[t for token in text for t in (token, 200_000)] for text in want], prefix="foreign-")
    save(cache, tmp_path / "answers.suffix")
    spec = {"method": "suffix", "suffix_decoding_cache_path": str(tmp_path / "answers.suffix")}
    assert served(toy_model, speculative_config=spec) == want
    with pytest.raises(ConfigError, match="suffix_decoding_cache_path"):
        served(toy_model, speculative_config={**spec, "suffix_decoding_cache_path": str(tmp_path / "none")})


def test_what_one_tenant_said_helps_no_other(toy_model: Path) -> None:
    spec = {"method": "suffix", "num_speculative_tokens": 8}
    llm = LLM(str(toy_model), device="cpu", max_model_len=256, speculative_config=spec)
    accepted = []
    for tenant in ("a", "b", "a"):
        params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True, extra_args={"cache_salt": tenant})
        before = llm.engine.stats.spec.num_accepted_tokens
        llm.generate(["hello hello"], params, use_tqdm=False)
        accepted.append(llm.engine.stats.spec.num_accepted_tokens - before)
    assert accepted[0] == accepted[1] < accepted[2]
