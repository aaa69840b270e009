"""Mixtures of experts in the engine: batched, cut, preempted or drafted for in any way, the text is `generate`'s."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import hybrid_drafters
import pytest
from dense_cases import MIXTURES, save_random
from hybrid_runs import NGRAM, SUFFIX_TREE, WIDE, Tokens, ask, ask_served, confirmed, engine, know, random_prompts

from augury import LLM
from augury.model.dense import Dense

pytestmark = pytest.mark.usefixtures("one_thread_throughout")
PROMPTS = random_prompts()
FITTED = (0, 3, 4)  # prompts whose answers the draft model has seen: short ones


class Family(NamedTuple):
    directory: Path
    plain: LLM
    greedy: Tokens  # what transformers says
    sampled: Tokens  # what plain decoding says at temperature 0.8


@pytest.fixture(scope="module", params=["qwen3-moe-normed", "mixtral"])
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Family:
    directory = tmp_path_factory.mktemp("mixture")
    model = save_random(MIXTURES[request.param], directory)
    plain = engine(directory)
    return Family(directory, plain, confirmed(model, PROMPTS, ask(plain, PROMPTS)), ask(plain, PROMPTS, 0.8))


def test_text_is_generates(family: Family) -> None:
    """By our own code, which a GPU captures; plain, and with trees of which much is right."""
    target = family.plain.engine.runner.target
    assert isinstance(target, Dense) and target.capturable
    assert family.greedy != family.sampled
    assert ask(family.plain, PROMPTS) == family.greedy
    llm = engine(family.directory, family.plain, speculative_config=WIDE)
    know(llm, PROMPTS, family.greedy, family.sampled, branching=True)
    assert ask(llm, PROMPTS) == family.greedy
    assert ask(llm, PROMPTS, 0.8) == family.sampled
    assert llm.engine.stats.spec.num_accepted_tokens > 50 and llm.engine.stats.prefix_cache_hits > 0


@pytest.mark.parametrize("spec", [NGRAM, SUFFIX_TREE], ids=["ngram", "suffix tree"])
def test_look_ups(family: Family, spec: dict[str, Any]) -> None:
    llm = engine(family.directory, family.plain, speculative_config=spec)
    assert ask(llm, PROMPTS) == family.greedy
    assert ask(llm, PROMPTS) == family.greedy
    assert ask(llm, PROMPTS, 0.8) == family.sampled


def test_draft_models(family: Family, tmp_path: Path) -> None:
    """One that has read some answers, and the target itself, all of whose drafts are right."""
    small = hybrid_drafters.draft_model([PROMPTS[i] + family.greedy[i] for i in FITTED], tmp_path / "small")
    for files, right in ((small, 0.0), (family.directory, 1.0)):
        spec = {"method": "draft_model", "model": str(files), "num_speculative_tokens": 4}
        llm = engine(family.directory, family.plain, speculative_config=spec)
        assert ask(llm, PROMPTS) == family.greedy
        found = llm.engine.stats.spec
        assert found.num_accepted_tokens > right * 0.9 * found.num_draft_tokens
        assert ask(llm, PROMPTS, 0.8) == family.sampled


@pytest.mark.parametrize("drafts", ["plain", "drafts"])
@pytest.mark.parametrize(
    "settings",
    [
        {"max_num_seqs": 3},
        {"long_prefill_token_threshold": 7},
        {"max_num_batched_tokens": 8},
        {"num_gpu_blocks_override": 14},  # preempts
    ],
    ids=lambda s: ",".join(f"{k}={v}" for k, v in s.items()),
)
def test_text_does_not_depend_on_how_it_was_served(family: Family, settings: dict[str, Any], drafts: str) -> None:
    ask_served(family, PROMPTS, settings, drafts != "plain")
