"""MTP layers of hybrid targets: the head against its formula with transformers' own layer, and text with its drafts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from covering import covering
from eagle_cases import run_whole
from hybrid_cases import WithMtp, save_as_speculator, save_with_mtp
from hybrid_runs import Tokens, ask, confirmed, engine, generated, random_prompts
from mtp_cases import foreign_block
from torch import Tensor

from augury import LLM
from augury.model.errors import ModelError
from augury.model.heads.mtp import MtpHead
from augury.model.load import load_target

pytestmark = pytest.mark.usefixtures("one_thread_throughout")
PROMPTS = random_prompts((5, 23, 40, 9))
NEW = 12
FAMILIES = ["qwen3-next", "qwen3.5", "qwen3.5-moe"]


@pytest.fixture(scope="module", params=FAMILIES)
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, WithMtp]:
    directory = tmp_path_factory.mktemp("mtp")
    return directory, save_with_mtp(request.param, directory, 2)


def formula(made: WithMtp, i: int, embedded: Tensor, hidden: Tensor) -> Tensor:
    """Normed states [T, H] of MTP layer i; norms are stored around zero."""

    def normed(x: Tensor, part: str) -> Tensor:
        eps = made.whole.config.rms_norm_eps
        return torch.nn.functional.rms_norm(x, x.shape[-1:], 1 + made.parts[f"{part}.weight"], eps)

    x = torch.cat([normed(embedded, "pre_fc_norm_embedding"), normed(hidden, "pre_fc_norm_hidden")], 1)
    x = x @ made.parts["fc.weight"].T
    layers = made.target.config.num_hidden_layers
    return normed(foreign_block(made.whole, layers + i, x, torch.arange(len(x))[None]), "norm")


@torch.no_grad()
def test_the_head_is_its_formula(saved: tuple[Path, WithMtp]) -> None:
    directory, made = saved
    target = load_target(directory)
    head = MtpHead.load(directory, target, torch.float32, 104, guesses=2)
    assert head.layout.name == "Qwen3-Next" and len(head.layers) == 2
    text, streams = PROMPTS[1][:12], torch.randn(12, target.hidden_size)
    logits, onward = run_whole(head, text, streams)
    embedded = made.target.get_input_embeddings()(torch.tensor(text[1:]))
    want = formula(made, 0, embedded, streams[:-1])
    torch.testing.assert_close(onward, want, atol=1e-4, rtol=1e-3)
    torch.testing.assert_close(logits, made.target.lm_head(want), atol=1e-3, rtol=1e-3)


@pytest.fixture(scope="module")
def plain(saved: tuple[Path, WithMtp]) -> tuple[LLM, Tokens, Tokens]:
    directory, made = saved
    llm = engine(directory)
    return llm, confirmed(made.target, PROMPTS, ask(llm, PROMPTS, 0.0, NEW)), ask(llm, PROMPTS, 0.8, NEW)


SHAPES: list[dict[str, Any]] = [
    {"num_speculative_tokens": 2},  # a guess a layer
    {"num_speculative_tokens": 4},
    {"num_speculative_tokens": 2, "tree": {"max_nodes": 6, "top_k": 2}},
]
SETTINGS: list[dict[str, int]] = [{}, {"long_prefill_token_threshold": 7, "num_gpu_blocks_override": 14}]


# What a family's layers are made of, how many guesses they make and how requests are cut meet by twos.
@pytest.mark.parametrize(
    ("saved", "shape", "settings"), covering(FAMILIES, SHAPES, SETTINGS), ids=str, indirect=["saved"]
)
def test_text_with_its_drafts(
    saved: tuple[Path, WithMtp], plain: tuple[LLM, Tokens, Tokens], shape: dict[str, int], settings: dict[str, int]
) -> None:
    directory, like, greedy, sampled = saved[0], *plain
    llm = engine(directory, like, speculative_config={"method": "mtp", **shape}, **settings)
    assert ask(llm, PROMPTS, 0.0, NEW) == greedy  # cold
    assert ask(llm, PROMPTS, 0.8, NEW) == sampled  # prefix cache warm
    stats = llm.engine.stats
    assert stats.spec.num_draft_tokens > 50
    assert settings or stats.prefix_cache_hits > 0


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, WithMtp]:
    directory = tmp_path_factory.mktemp("one")
    return directory, save_with_mtp("qwen3-next", directory, 1)


def test_the_speculators_format(one: tuple[Path, WithMtp], tmp_path: Path) -> None:
    """The same layer under other names, in a checkpoint of its own that names the target: the same drafts."""
    directory, made = one
    other = save_as_speculator(directory, tmp_path / "speculator", made.target)
    target = load_target(directory)
    own, theirs = (MtpHead.load(place, target, torch.float32, 104) for place in (directory, other))
    assert theirs.layout.name == "speculators" and theirs.layout.centred
    text, streams = PROMPTS[1][:12], torch.randn(12, target.hidden_size)
    for ours, same in zip(run_whole(own, text, streams), run_whole(theirs, text, streams), strict=True):
        assert torch.equal(ours, same)
    spec = {"method": "mtp", "model": str(other), "num_speculative_tokens": 1}
    llm = engine(directory, speculative_config=spec)
    assert ask(llm, PROMPTS[:1], 0.0, NEW) == generated(made.target, PROMPTS[:1], NEW)
    (other / "config.json").write_text(json.dumps({"transformer_layer_config": {"model_type": "nothing"}}))
    with pytest.raises(ModelError, match="cannot read the layers in"):
        MtpHead.load(other, target, torch.float32, 104)


def test_one_layer(one: tuple[Path, WithMtp]) -> None:
    directory, made = one
    greedy = confirmed(made.target, PROMPTS, ask(engine(directory), PROMPTS, 0.0, NEW))
    for tokens in (1, 3):
        llm = engine(directory, speculative_config={"method": "mtp", "num_speculative_tokens": tokens})
        assert ask(llm, PROMPTS, 0.0, NEW) == greedy
        assert llm.engine.stats.spec.num_draft_tokens > 0


def test_a_config_that_does_not_say_how_many(one: tuple[Path, WithMtp], tmp_path: Path) -> None:
    """Qwen3-Next without the key has one layer, as vLLM reads it."""
    directory, made = one
    silent = shutil.copytree(directory, tmp_path / "silent")
    config = json.loads((silent / "config.json").read_text())
    del config["num_nextn_predict_layers"]
    (silent / "config.json").write_text(json.dumps(config))
    llm = engine(silent, speculative_config={"method": "mtp", "num_speculative_tokens": 1})
    assert ask(llm, PROMPTS[:2], 0.0, NEW) == generated(made.target, PROMPTS[:2], NEW)
    assert llm.engine.stats.spec.num_draft_tokens > 0
