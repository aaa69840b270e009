"""LongRoPE: past its original length all keys of a text are rotated by the long factors, as transformers has it."""

from __future__ import annotations

from pathlib import Path

import pytest
from dense_cases import LONG, SIZES, save_random
from hybrid_runs import WIDE, Tokens, ask, engine, generated, know, random_prompts
from transformers import LlamaConfig, Phi3Config

from augury import LLM
from augury.model.adapter import Adapter
from augury.model.dense import Dense
from augury.model.load import load_target

pytestmark = pytest.mark.usefixtures("one_thread_throughout")
ORIGINAL = 40
PROMPTS = random_prompts((5, 60, 30, 39, 40, 41, 36, 70))  # some stay below, some cross, some begin beyond
ROPE = {**LONG, "original_max_position_embeddings": ORIGINAL}
LENGTHS = {**SIZES, "max_position_embeddings": 104}


@pytest.fixture(scope="module")
def phi(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, LLM, Tokens]:
    directory = tmp_path_factory.mktemp("phi")
    config = Phi3Config(
        **LENGTHS, rope_parameters=ROPE, original_max_position_embeddings=ORIGINAL, pad_token_id=0, eos_token_id=3
    )
    model = save_random(config, directory)
    return directory, engine(directory), generated(model, PROMPTS)


def test_text_is_generates(phi: tuple[Path, LLM, Tokens]) -> None:
    """Texts below, beyond and across the switch; across it, a text is read anew."""
    _, plain, greedy = phi
    crossing = sum(len(p) <= ORIGINAL < len(p) + len(a) - 1 for p, a in zip(PROMPTS, greedy, strict=True))
    assert ask(plain, PROMPTS) == greedy and plain.engine.stats.preemptions == crossing > 2
    assert ask(plain, PROMPTS) == greedy and plain.engine.stats.prefix_cache_hits > 0


@pytest.mark.parametrize("branching", [False, True])
@pytest.mark.parametrize(
    "settings", [{}, {"long_prefill_token_threshold": 7}, {"num_gpu_blocks_override": 14}], ids=str
)
def test_drafts_across_the_switch(phi: tuple[Path, LLM, Tokens], branching: bool, settings: dict[str, int]) -> None:
    directory, plain, greedy = phi
    sampled = ask(plain, PROMPTS, 0.8)
    llm = engine(directory, plain, speculative_config=WIDE, **settings)
    know(llm, PROMPTS, greedy, sampled, branching=branching)
    assert ask(llm, PROMPTS) == greedy
    assert ask(llm, PROMPTS, 0.8) == sampled
    assert llm.engine.stats.spec.num_accepted_tokens > 50


def test_a_short_and_a_long_text_share_nothing(phi: tuple[Path, LLM, Tokens]) -> None:
    """They may begin alike, but their keys differ."""
    directory, plain, _ = phi
    llm = engine(directory, plain)
    prompt = PROMPTS[7]
    cold = [ask(plain, [text]) for text in (prompt[:20], prompt)]
    assert [ask(llm, [prompt[:20]]), ask(llm, [prompt])] == cold
    assert llm.engine.stats.prefix_cache_hits == 0


def test_who_switches(tmp_path: Path) -> None:
    """Ours does not; a table whose halves are the same, as GGUF files make one, need not."""
    for name, rope in (("other", ROPE), ("same", {**ROPE, "long_factor": ROPE["short_factor"]})):
        save_random(LlamaConfig(**LENGTHS, rope_parameters=rope), tmp_path / name)
        target = load_target(tmp_path / name)
        assert isinstance(target, Adapter if name == "other" else Dense)
        assert target.switch_length == (ORIGINAL if name == "other" else 0)
