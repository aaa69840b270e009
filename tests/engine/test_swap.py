"""A drafter is replaced between two steps: as if the engine had been started with it, and no text changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from random_drafters import KINDS, drafter

from augury import LLM, SamplingParams
from augury.config.errors import ConfigError
from augury.engine.swap import DrafterSwap
from augury.methods.registry import METHODS
from augury.model.heads import lighter
from augury.train.export import name_target

PROMPTS = [{"prompt_token_ids": [65 + i, 66, 67 + i]} for i in range(3)]
IN_BYTES = "eagle3 in bytes"
GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)


def engine(toy_model: Path, kind: str, directory: Path) -> LLM:
    method = next(card.name for card in METHODS.values() if kind in card.trained)
    spec = {"method": method, "model": str(directory), "num_speculative_tokens": 3}
    return LLM(str(toy_model), device="cpu", max_model_len=64, speculative_config=spec, enable_prefix_caching=False)


def drafts_and_text(llm: LLM) -> tuple[list[list[int]], list[Any]]:
    """Everything that is drafted for the prompts, and the answers."""
    drafted: list[list[int]] = []
    mine: Any = llm.engine.drafter
    propose = type(mine).propose

    def watched(inputs: Any) -> Any:
        made = propose(mine, inputs)
        drafted.append(made.tokens[:, : int(made.count.max())].flatten().tolist())
        return made

    mine.propose = watched
    outputs = llm.generate(PROMPTS, GREEDY, use_tqdm=False)
    del mine.propose
    return drafted, [output.outputs[0].token_ids for output in outputs]


@pytest.mark.parametrize("kind", [*KINDS, IN_BYTES])
def test_a_swapped_drafter_drafts_as_one_that_was_loaded(
    kind: str, toy_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == IN_BYTES:
        kind = "eagle3"
        monkeypatch.setattr(lighter, "LARGE", 1)
    first, second = (drafter(toy_model, kind, seed, tmp_path / str(seed)) for seed in (1, 2))
    llm, other = engine(toy_model, kind, first), engine(toy_model, kind, second)
    before, wanted = drafts_and_text(llm), drafts_and_text(other)
    assert before[0] != wanted[0]
    swap = DrafterSwap(llm.engine, llm.config, llm.model_path)
    swap.put(second)
    assert swap.loaded == str(second)
    assert drafts_and_text(llm) == wanted
    swap.undo()
    assert swap.loaded == str(first)
    assert drafts_and_text(llm) == before
    with pytest.raises(ConfigError, match="nothing to roll back"):
        swap.undo()


def test_running_requests_go_on(toy_model: Path, tmp_path: Path) -> None:
    first, second = (drafter(toy_model, "eagle3", seed, tmp_path / str(seed)) for seed in (1, 2))
    llm = engine(toy_model, "eagle3", first)
    wanted = drafts_and_text(llm)[1]
    swap, steps = DrafterSwap(llm.engine, llm.config, llm.model_path), 0
    step = llm.engine.step

    def stepping() -> Any:
        nonlocal steps
        steps += 1
        if steps == 5:
            swap.put(second)
        return step()

    llm.engine.step = stepping  # type: ignore[method-assign]
    assert drafts_and_text(llm)[1] == wanted
    assert steps > 5


def test_what_does_not_fit_is_refused_and_nothing_changes(toy_model: Path, tmp_path: Path) -> None:
    llm = engine(toy_model, "eagle3", drafter(toy_model, "eagle3", 1, tmp_path / "mine"))
    before, swap = drafts_and_text(llm), DrafterSwap(llm.engine, llm.config, llm.model_path)
    few = drafter(toy_model, "eagle3", 2, tmp_path / "few", vocabulary=100)
    with pytest.raises(ConfigError, match="restart"):
        swap.put(few)
    foreign = drafter(toy_model, "eagle3", 3, tmp_path / "foreign")
    other = drafter(toy_model, "draft_model", 4, tmp_path / "other")
    name_target(foreign, other)
    with pytest.raises(ConfigError, match="was trained for"):
        swap.put(foreign)
    assert drafts_and_text(llm) == before


def test_there_must_be_a_drafter(toy_model: Path, tmp_path: Path) -> None:
    plain = LLM(str(toy_model), device="cpu", max_model_len=64)
    ngram = LLM(
        str(toy_model),
        device="cpu",
        max_model_len=64,
        speculative_config={"method": "ngram", "num_speculative_tokens": 2},
    )
    for llm in (plain, ngram):
        with pytest.raises(ConfigError, match="nothing to swap"):
            DrafterSwap(llm.engine, llm.config, llm.model_path).put(tmp_path)
