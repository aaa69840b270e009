"""Engines of several ranks for tests: processes that are started once, and drafters of every kind for the toy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import forked
import torch
from eagle_cases import DRAFT, config_of, eagle3_module, eagle_module, write_eagle3
from gate import export
from mlp_cases import config as mlp_config
from mlp_cases import mlp
from mtp_cases import BY_NAME, Mtp, with_layer
from safetensors.torch import save_file

from augury import LLM, SamplingParams
from augury.config.engine import EngineConfig
from augury.engine import llm as llm_module
from augury.engine.mirror import Leader
from augury.engine.team import Team, assemble

PROMPTS = ["abcabcabc", "the cat sat", "z"]
NEW = 6
GREEDY, SAMPLED = {"temperature": 0.0}, {"temperature": 0.8}
FILTERED = {"temperature": 0.9, "top_p": 0.8, "min_p": 0.01}
MIXED = (GREEDY, SAMPLED, SAMPLED)  # of one batch, a prompt each: ranks draw apart
GATHERED = (FILTERED, GREEDY, SAMPLED)  # and here from all logits
ALL_GREEDY = (GREEDY, GREEDY, GREEDY)


class Kept:
    """Ranks that outlive an engine, so that a test need not start processes for every one."""

    def __init__(self, toy_model: Path, size: int) -> None:
        config = EngineConfig.parse(model=str(toy_model), device="cpu", tensor_parallel_size=size)
        with forked.ranks():
            self.team: Team = assemble(config)
        self.ranks, self.build = self.team.ranks, self.team.build

    def close(self) -> None:
        """Of an engine: the ranks stay."""
        Leader(self.ranks).close()


def engine(model: Path | str, kept: Kept | None, **arguments: Any) -> LLM:
    """An LLM on ranks that are there already, or on one."""
    size = 1 if kept is None else kept.ranks.size
    before = llm_module.join
    llm_module.join = lambda config, directory, lent: kept  # type: ignore[assignment, return-value]
    try:
        sizes = {"max_model_len": 96, "max_num_seqs": 3, "device": "cpu", **arguments}
        return LLM(str(model), tensor_parallel_size=size, **sizes)
    finally:
        llm_module.join = before


def said(
    llm: LLM, *batches: tuple[dict[str, Any], ...], prompts: list[Any] = PROMPTS
) -> tuple[list[list[list[int]]], list[Any]]:
    """The tokens of every batch, and all that was drafted on the way."""
    drafts: list[Any] = []
    runner, propose, look_up = llm.engine.runner, llm.engine.runner.propose, llm.engine.runner.look_up

    def note(draft: Any) -> Any:
        if draft is not None:
            drafts.append([draft.tokens.tolist(), draft.parents.tolist(), draft.count.tolist()])
        return draft

    def looked_up(flight: Any, report: Any) -> None:
        look_up(flight, report)
        if llm.engine.drafter is not None and llm.engine.drafter.looks_up:
            note(flight.drafts)

    runner.propose = lambda *given: note(propose(*given))  # type: ignore[method-assign]
    runner.look_up = looked_up  # type: ignore[method-assign]
    texts = []
    for laws in batches:
        params = [SamplingParams(max_tokens=NEW, ignore_eos=True, seed=i, **law) for i, law in enumerate(laws)]
        texts.append([output.outputs[0].token_ids for output in llm.generate(prompts, params, use_tqdm=False)])
    return texts, drafts


def write_medusa(directory: Path) -> Path:
    """Two random heads."""
    directory.mkdir()
    random = torch.Generator().manual_seed(3)
    tensors = {}
    for head in range(2):
        tensors[f"{head}.0.linear.weight"] = 0.1 * torch.randn(64, 64, generator=random)
        tensors[f"{head}.0.linear.bias"] = 0.1 * torch.randn(64, generator=random)
        tensors[f"{head}.1.weight"] = torch.randn(260, 64, generator=random)
    save_file(tensors, directory / "model.safetensors")
    (directory / "config.json").write_text('{"medusa_num_heads": 2, "medusa_num_layers": 1, "model_type": "medusa"}')
    return directory


def write_mtp(toy_model: Path, directory: Path) -> Path:
    """The toy with a layer that guesses."""
    torch.manual_seed(4)
    layout = BY_NAME["mimo"] if "mimo" in BY_NAME else next(iter(BY_NAME.values()))
    return with_layer(toy_model, directory, Mtp(config_of(DRAFT), layout))


def drafters(toy_model: Path, directory: Path) -> dict[str, Path]:
    """A drafter of every kind that has weights."""
    return {
        "eagle3": write_eagle3(directory / "eagle3", eagle3_module(), eagle_aux_hidden_state_layer_ids=[0, 1, 2]),
        "eagle": export(eagle_module(), DRAFT, directory / "eagle"),
        "medusa": write_medusa(directory / "medusa"),
        "mlp_speculator": export(mlp(), mlp_config(), directory / "mlp"),
        "draft_model": toy_model,
    }
