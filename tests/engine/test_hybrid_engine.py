"""Hybrid targets in the engine: however they are batched, cut, preempted or drafted for, the text is `generate`'s."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from hybrid_cases import HYBRIDS, save_hybrid
from hybrid_runs import (
    NGRAM,
    SUFFIX,
    SUFFIX_TREE,
    WIDE,
    Tokens,
    ask,
    ask_served,
    confirmed,
    engine,
    know,
    random_prompts,
)
from torch import Tensor

from augury import LLM
from augury.config.errors import ConfigError
from augury.engine.state_room import state_room
from augury.model.states import line_bytes, slot_bytes

pytestmark = pytest.mark.usefixtures("one_thread_throughout")
PROMPTS = random_prompts()


class Family(NamedTuple):
    directory: Path
    plain: LLM
    greedy: Tokens  # what transformers says
    sampled: Tokens  # what plain decoding says at temperature 0.8


def made(name: str, directory: Path) -> Family:
    model = save_hybrid(name, directory)
    plain = engine(directory)
    return Family(directory, plain, confirmed(model, PROMPTS, ask(plain, PROMPTS)), ask(plain, PROMPTS, 0.8))


@pytest.fixture(scope="module", params=HYBRIDS)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Family:
    return made(request.param, tmp_path_factory.mktemp("family"))


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Family:
    return made("qwen3-next", tmp_path_factory.mktemp("one"))


def test_text_is_generates(family: Family) -> None:
    """Plain, and with trees of which much is right; cold, and from the prefix cache."""
    assert family.greedy != family.sampled
    assert ask(family.plain, PROMPTS) == family.greedy
    llm = engine(family.directory, family.plain, speculative_config=WIDE)
    know(llm, PROMPTS, family.greedy, family.sampled, branching=True)
    assert ask(llm, PROMPTS) == family.greedy
    assert ask(llm, PROMPTS, 0.8) == family.sampled
    assert llm.engine.stats.spec.num_accepted_tokens > 50 and llm.engine.stats.prefix_cache_hits > 0


@pytest.mark.parametrize("spec", [NGRAM, SUFFIX, SUFFIX_TREE], ids=["ngram", "suffix", "suffix tree"])
def test_look_ups(one: Family, spec: dict[str, Any]) -> None:
    """The second time suffixes know the answers."""
    llm = engine(one.directory, one.plain, speculative_config=spec)
    assert ask(llm, PROMPTS) == one.greedy
    assert ask(llm, PROMPTS) == one.greedy
    assert ask(llm, PROMPTS, 0.8) == one.sampled
    assert spec is NGRAM or llm.engine.stats.spec.num_accepted_tokens > 50


@pytest.mark.parametrize("drafts", ["plain", "drafts"])
@pytest.mark.parametrize(
    "settings",
    [
        {"max_num_seqs": 1},
        {"max_num_seqs": 3},
        {"long_prefill_token_threshold": 7},
        {"long_prefill_token_threshold": 64},
        {"max_num_batched_tokens": 8},
        {"num_gpu_blocks_override": 14},  # preempts
        {"block_size": 1},
        {"enable_prefix_caching": False},
    ],
    ids=lambda s: ",".join(f"{k}={v}" for k, v in s.items()),
)
def test_text_does_not_depend_on_how_it_was_served(one: Family, settings: dict[str, Any], drafts: str) -> None:
    stats = ask_served(one, PROMPTS, settings, drafts != "plain").engine.stats
    if not {"num_gpu_blocks_override", "enable_prefix_caching"} & settings.keys():
        assert stats.prefix_cache_hits > 0


def test_a_pass_that_fails_midway_is_run_again(one: Family, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some layers have written their state by then, others have not."""
    llm = engine(one.directory, one.plain, speculative_config=WIDE, long_prefill_token_threshold=16)
    know(llm, PROMPTS, one.greedy, branching=True)
    calls = 0
    convolve = "augury.model.state_pass.convolve"
    from augury.model import state_pass

    real = state_pass.convolve

    def failing(*given: Any) -> Tensor:
        nonlocal calls
        calls += 1
        if calls % 17 == 0:
            raise ValueError("one pass in several")
        return real(*given)

    monkeypatch.setattr(convolve, failing)
    run = llm.engine.run_pass

    def in_peace(scheduled: Any) -> Any:
        monkeypatch.setattr(convolve, real)
        try:
            return run(scheduled)
        finally:
            monkeypatch.setattr(convolve, failing)

    monkeypatch.setattr(llm.engine, "run_pass", in_peace)
    monkeypatch.setattr("augury.engine.blame.recover", patient(llm))
    assert ask(llm, PROMPTS) == one.greedy
    assert calls > 17


def patient(llm: LLM) -> Any:
    """Recover also where a pass has one request, which then simply has another try."""
    from augury.engine.blame import recover

    def again(engine: Any, scheduled: Any, error: Exception) -> Any:
        if len(scheduled) > 1:
            return recover(engine, scheduled, error)
        for item in scheduled:
            engine.seat(item.request, item.request in engine.scheduler.seated)
        engine.scheduler.seated = []
        return engine.run_pass(scheduled)

    return again


def test_n_answers_read_their_prompt_once(one: Family) -> None:
    for caching in (True, False):
        llm = engine(one.directory, one.plain, enable_prefix_caching=caching, block_size=8)
        apart = [ask(llm, [PROMPTS[7]], 0.8, n=4)]
        assert llm.engine.stats.prefix_cache_hits == 3 * 64
        if caching:
            llm.reset_prefix_cache()
        assert [ask(llm, [PROMPTS[7]], 0.8, n=4)] == apart


def test_a_hybrid_cannot_draft(one: Family, toy_model: Path) -> None:
    spec = {"method": "draft_model", "model": str(one.directory), "num_speculative_tokens": 2}
    with pytest.raises(ConfigError, match="recurrent layers"):
        engine(one.directory, one.plain, speculative_config=spec)


def test_memory_is_shared_out(one: Family) -> None:
    target, config = one.plain.engine.target, one.plain.config
    line, slot = line_bytes(target.state_shapes), slot_bytes(target.state_shapes, 12)
    assert slot > 2 * line > 0
    room = state_room(config, target, 12, 100 * slot)
    assert room.num_bytes == 9 * slot + room.lines * line and room.lines == min(64, 25 * slot // line)
    with pytest.raises(ConfigError, match="max_num_seqs=8 needs"):
        state_room(config, target, 12, 8 * slot)
    few = engine(one.directory, one.plain, max_num_seqs=None, kv_cache_memory_bytes=10 * slot)
    assert 1 <= (few.config.max_num_seqs or 0) <= 10
    states = few.engine.target.cache.states
    assert states is not None
    held = sum(t.nbytes for t in (*states.tails, *states.memory, *states.logs))
    blocks = sum(t.nbytes for t in (*few.engine.target.cache.keys, *few.engine.target.cache.values))
    assert held + blocks <= 10 * slot + 2 * slot, "states and blocks together keep to the cache's memory"


def test_bits_do_not_depend_on_threads(one: Family) -> None:
    torch.set_num_threads(2)
    try:
        assert ask(engine(one.directory, one.plain), PROMPTS) == one.greedy
    finally:
        torch.set_num_threads(1)
