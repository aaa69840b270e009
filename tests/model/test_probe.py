"""The trial of a head at load: mistakes of its config.json are found and mended, everything else is left alone."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from conftest import byte_tokenizer, save_toy
from formulas_dflash import Blocks, DFlashFormula, Shape, published_config
from formulas_eagle import Eagle3
from gate import Studied, export, overfit
from torch import Tensor, nn
from transformers import LlamaConfig

from augury import LLM, SamplingParams
from augury.model.heads.probe import LENGTH, TEXT

LAYERS = (1, 2, 3)
DRAFT: dict[str, Any] = {
    "model_type": "llama", "architectures": ["LlamaForCausalLMEagle3"], "vocab_size": 260, "hidden_size": 64,
    "intermediate_size": 96, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "draft_vocab_size": 260,
}  # fmt: skip


@pytest.fixture(scope="module")
def four_layers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target with room to be wrong about: layers on both sides of those a head reads."""
    return save_toy(tmp_path_factory.mktemp("four"), layers=4)


@pytest.fixture(scope="module")
def page(four_layers: Path) -> tuple[Studied, list[int], Tensor]:
    """What the target says of the text."""
    studied = Studied(four_layers, [], 0)
    ids = list(byte_tokenizer().encode(TEXT))[:LENGTH]  # type: ignore[attr-defined]
    with torch.no_grad():
        answers = studied.model(torch.tensor([ids])).logits[0].argmax(-1)
    return studied, ids, answers


@pytest.fixture(scope="module", params=[False, True], ids=["plain residual", "normed residual"])
def eagle3(request: Any, page: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bool]:
    """A head that knows that page by heart, and how its residual begins."""
    studied, ids, answers = page
    torch.manual_seed(5)
    inner = LlamaConfig(**{k: v for k, v in DRAFT.items() if k not in ("model_type", "architectures")})
    module = Eagle3(inner, 3, 260, 260, norm_before_residual=request.param)
    for name, tensor in module.named_parameters():
        nn.init.normal_(tensor, 1.0 if "norm" in name else 0.0, 0.1)
    module.d2t = torch.zeros(260, dtype=torch.int64)
    streams, embedded = studied.streams(ids, LAYERS)[:-2], studied.embed(ids[1:-1])
    overfit(module, lambda: F.cross_entropy(module(embedded, module.combine(streams))[0], answers[1:-1]), 80)
    return export(module, DRAFT, tmp_path_factory.mktemp("eagle3")), request.param


def rewritten(head: Path, directory: Path, **config: Any) -> Path:
    """The same weights under another config.json."""
    directory.mkdir()
    (directory / "model.safetensors").symlink_to(head / "model.safetensors")
    (directory / "config.json").write_text(json.dumps({**json.loads((head / "config.json").read_text()), **config}))
    return directory


def loaded(target: Path, method: str, head: Path, caplog: Any, tokens: int = 3) -> tuple[LLM, str]:
    with caplog.at_level(logging.WARNING, "augury"):
        caplog.clear()
        spec = {"method": method, "model": str(head), "num_speculative_tokens": tokens}
        llm = LLM(str(target), max_model_len=256, speculative_config=spec)
    return llm, caplog.text


@pytest.mark.parametrize("stated", [(1, 2, 3), (0, 1, 2), (2, 3, 4)])
@pytest.mark.parametrize("flag", [False, True])
def test_eagle3_is_read_as_it_was_trained(
    four_layers: Path, eagle3: tuple[Path, bool], tmp_path: Path, caplog: Any, stated: tuple[int, ...], flag: bool
) -> None:
    head, trained_flag = eagle3
    files = rewritten(head, tmp_path / "head", eagle_aux_hidden_state_layer_ids=list(stated), norm_before_residual=flag)
    llm, said = loaded(four_layers, "eagle3", files, caplog)
    drafter: Any = llm.engine.drafter
    assert drafter.needs.features == LAYERS
    assert drafter.head.flags.norm_before_residual is trained_flag
    assert (f"feature layers {list(stated)}" in said) is (stated != LAYERS)
    assert ("norm_before_residual" in said) is (flag != trained_flag)


def test_a_head_that_knows_nothing_is_left_as_its_files_say(four_layers: Path, tmp_path: Path, caplog: Any) -> None:
    for seed in range(6):
        torch.manual_seed(seed)
        inner = LlamaConfig(**{k: v for k, v in DRAFT.items() if k not in ("model_type", "architectures")})
        module = Eagle3(inner, 3, 260, 260)
        for name, tensor in module.named_parameters():
            nn.init.normal_(tensor, 1.0 if "norm" in name else 0.0, 0.3)
        module.d2t = torch.zeros(260, dtype=torch.int64)
        files = export(module, {**DRAFT, "eagle_aux_hidden_state_layer_ids": [1, 2, 3]}, tmp_path / str(seed))
        llm, said = loaded(four_layers, "eagle3", files, caplog)
        drafter: Any = llm.engine.drafter
        assert drafter.needs.features == LAYERS and not drafter.head.flags.norm_before_residual and not said


def test_text_is_unharmed_by_the_trial(four_layers: Path, eagle3: tuple[Path, bool], tmp_path: Path) -> None:
    files = rewritten(eagle3[0], tmp_path / "head", eagle_aux_hidden_state_layer_ids=[0, 1, 2])
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    plain = LLM(str(four_layers), max_model_len=256).generate([TEXT[:60]], params, use_tqdm=False)
    spec = {"method": "eagle3", "model": str(files), "num_speculative_tokens": 3}
    drafted = LLM(str(four_layers), max_model_len=256, speculative_config=spec)
    assert (
        drafted.generate([TEXT[:60]], params, use_tqdm=False)[0].outputs[0].token_ids == plain[0].outputs[0].token_ids
    )


@pytest.fixture(scope="module")
def dflash(page: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A block drafter that knows that page by heart, from the streams after two and three layers."""
    studied, ids, answers = page
    torch.manual_seed(3)
    formula, mask, size = DFlashFormula(Shape()), 259, 4
    blocks = Blocks.at(list(range(3, len(ids) - 3, 3)), size)
    masked = blocks.positions > blocks.anchor
    embedded = studied.embed(torch.where(masked, mask, torch.tensor(ids)[blocks.positions]))
    streams, wanted = studied.streams(ids, (2, 3)), answers[blocks.positions[masked] - 1]
    overfit(formula, lambda: F.cross_entropy(studied.head(formula(streams, embedded, blocks)[masked]), wanted), 120)
    config = published_config(Shape(), mask, [1, 2], num_target_layers=4)
    return export(formula, config, tmp_path_factory.mktemp("dflash"))


@pytest.mark.parametrize("stated", [(1, 2), (0, 1), (2, 3)])
def test_dflash_is_read_as_it_was_trained(
    four_layers: Path, dflash: Path, tmp_path: Path, caplog: Any, stated: tuple[int, ...]
) -> None:
    inner = {"mask_token_id": 259, "target_layer_ids": list(stated)}
    llm, said = loaded(four_layers, "dflash", rewritten(dflash, tmp_path / "head", dflash_config=inner), caplog)
    drafter: Any = llm.engine.drafter
    assert drafter.needs.features == (2, 3)
    assert ("feature layers" in said) is (stated != (1, 2))
