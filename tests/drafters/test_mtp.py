"""MTP: the extra layer of a target in every naming, against its formula, and through the engine."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from conftest import byte_tokenizer
from eagle_cases import TEXT, run_whole
from gate import Studied, overfit
from generating import DEVICE, PROMPTS, ids
from mtp_cases import BY_NAME, FOREIGN, SIZES, Mtp, foreign_layer, with_foreign_layer, with_layer
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, Qwen2Config

from augury import LLM, SamplingParams
from augury.model.errors import ModelError
from augury.model.heads.mtp import MtpHead
from augury.model.load import load_target
from augury.model.target import NORMED


@pytest.fixture(scope="module")
def studied(toy_model: Path) -> Studied:
    return Studied(toy_model, [[64, 65, 66, 67]], 40)


@pytest.mark.parametrize("name", [n for n in BY_NAME if n != "Qwen3-Next"])
@pytest.mark.parametrize("shards", [False, True])
def test_every_layout_is_its_formula(
    tmp_path: Path, toy_model: Path, studied: Studied, name: str, shards: bool
) -> None:
    torch.manual_seed(3)
    module = Mtp(studied.config, BY_NAME[name])
    directory = with_layer(toy_model, tmp_path / "m", module, shards)
    target = load_target(directory, "float32", "cpu")
    head = MtpHead.load(directory, target, torch.float32, 512)
    assert head.layout.name == name
    streams = studied.streams(TEXT, (NORMED,))
    logits, onward = run_whole(head, TEXT, streams)
    want = module(studied.embed(TEXT[1:]), streams[:-1])
    torch.testing.assert_close(onward, want, atol=1e-4, rtol=1e-3)
    torch.testing.assert_close(logits, studied.head(want), atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("name", FOREIGN)
def test_layers_with_experts_or_latent_attention(tmp_path: Path, name: str) -> None:
    """DeepSeek's and GLM's own: the layer is one of the target's class, run by itself."""
    whole, [parts] = with_foreign_layer(FOREIGN[name], tmp_path)
    target = load_target(tmp_path, "float32", "cpu")
    head = MtpHead.load(tmp_path, target, torch.float32, 512)
    assert target.num_layers == 2 and head.layout.name == "DeepSeek"
    text = [3, 9, 27, 81, 5, 25, 7, 49, 12]
    streams = torch.randn(len(text), 64)
    logits, onward = run_whole(head, text, streams)

    embedded = whole.model.embed_tokens(torch.tensor(text[1:]))
    want = foreign_layer(whole, parts, 0, embedded, streams[:-1])
    torch.testing.assert_close(onward, want, atol=1e-4, rtol=1e-3)
    torch.testing.assert_close(logits, whole.lm_head(want), atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("name", FOREIGN)
def test_text_with_such_a_layer(tmp_path: Path, name: str) -> None:
    with_foreign_layer(FOREIGN[name], tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)  # type: ignore[attr-defined]
    params = [SamplingParams(temperature=t, seed=i, max_tokens=12, ignore_eos=True) for i, t in enumerate((0, 0.8))]
    plain = ids(LLM(str(tmp_path), max_model_len=128), PROMPTS[:2], params)
    for shape in ({"num_speculative_tokens": 3}, {"num_speculative_tokens": 2, "tree": {"max_nodes": 6, "top_k": 2}}):
        llm = LLM(str(tmp_path), max_model_len=128, speculative_config={"method": "mtp", **shape})
        assert ids(llm, PROMPTS[:2], params) == plain
        assert llm.engine.stats.spec.num_draft_tokens > 0


def test_a_layer_that_lacks_an_expert_says_which(tmp_path: Path) -> None:
    with_foreign_layer(FOREIGN["DeepSeek-V3"], tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["model.layers.2.self_attn.kv_b_proj.weight"]
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match=r"kv_b_proj"):
        MtpHead.load(tmp_path, load_target(tmp_path, "float32", "cpu"), torch.float32, 512)


def test_norms_stored_around_zero(
    tmp_path: Path, toy_model: Path, studied: Studied, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Qwen3-Next's layout, told by the target's type, adds the one that its files leave out."""
    from augury.model.heads import mtp

    torch.manual_seed(4)
    layout = BY_NAME["Qwen3-Next"]
    module = Mtp(studied.config, layout)
    directory = with_layer(toy_model, tmp_path / "m", module)
    target = load_target(directory, "float32", "cpu")
    read = mtp.read_config

    def as_qwen(path: Path) -> Any:
        config = read(path)
        config.model_type = "qwen3_next"
        return config

    monkeypatch.setattr(mtp, "read_config", as_qwen)
    head = MtpHead.load(directory, target, torch.float32, 512)
    assert head.layout.name == "Qwen3-Next"
    streams = studied.streams(TEXT, (NORMED,))
    want = module(studied.embed(TEXT[1:]), streams[:-1])
    torch.testing.assert_close(run_whole(head, TEXT, streams)[1], want, atol=1e-4, rtol=1e-3)


@pytest.fixture(scope="module")
def trained(toy_model: Path, tmp_path_factory: pytest.TempPathFactory, studied: Studied) -> Path:
    torch.manual_seed(5)
    module = Mtp(studied.config, BY_NAME["DeepSeek"])
    text = torch.tensor(studied.texts[0])
    embedded, streams = studied.embed(text[1:]), studied.streams(text.tolist(), (NORMED,))

    def loss() -> Tensor:
        out = module(embedded, streams[:-1])
        again = module(embedded[1:], out[:-1])
        return F.cross_entropy(studied.head(out[:-1]), text[2:]) + F.cross_entropy(studied.head(again[:-1]), text[3:])

    overfit(module, loss, 130)
    return with_layer(toy_model, tmp_path_factory.mktemp("mtp") / "t", module)


def test_the_gate_and_the_text(toy_model: Path, trained: Path, studied: Studied) -> None:
    plain = LLM(str(toy_model), device=DEVICE, max_model_len=256)
    llm = LLM(
        str(trained),
        device=DEVICE,
        max_model_len=256,
        speculative_config={"method": "mtp", "num_speculative_tokens": 2},
    )
    text = studied.texts[0]
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    assert ids(llm, [{"prompt_token_ids": text[:4]}], params) == [text[4:]]
    assert llm.engine.stats.spec.acceptance_rate > 0.6
    sampled = [
        SamplingParams(temperature=t, seed=i, max_tokens=25, ignore_eos=True) for i, t in enumerate((0, 0.7) * 4)
    ]
    assert ids(llm, PROMPTS, sampled) == ids(plain, PROMPTS, sampled)


def test_a_target_of_type_mimo_is_qwen2_with_layers_beside_it(toy_model: Path, tmp_path: Path) -> None:
    sizes = SIZES | {"num_key_value_heads": 2, "tie_word_embeddings": False}
    torch.manual_seed(5)
    plain = AutoModelForCausalLM.from_config(Qwen2Config(**sizes)).to(torch.float32)
    for name, tensor in plain.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(tensor, 0.0, 0.5)  # Qwen2's own, which a Llama would not have
    plain.save_pretrained(tmp_path / "qwen2")
    module = Mtp(Qwen2Config(**sizes, head_dim=16), BY_NAME["MiMo"])  # type: ignore[call-arg]
    for name in ("tokenizer.json", "tokenizer_config.json"):
        if (toy_model / name).is_file():
            shutil.copy(toy_model / name, tmp_path / "qwen2" / name)
    directory = with_layer(tmp_path / "qwen2", tmp_path / "mimo", module)
    config = json.loads((directory / "config.json").read_text())
    config |= {"model_type": "mimo", "architectures": ["MiMoForCausalLM"], "num_nextn_predict_layers": 1}
    config |= {"auto_map": {"AutoConfig": "configuration_mimo.MiMoConfig"}}
    (directory / "config.json").write_text(json.dumps(config))
    prompts = [{"prompt_token_ids": [3, 1, 4, 1, 5, 9, 2, 6]}]
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    speculation = {"method": "mtp", "num_speculative_tokens": 1}
    told = ids(LLM(str(directory), device=DEVICE, max_model_len=64, speculative_config=speculation), prompts, params)
    assert told == ids(LLM(str(tmp_path / "qwen2"), device=DEVICE, max_model_len=64), prompts, params)


def test_targets_without_such_weights_say_so(toy_model: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has none known"):
        LLM(str(toy_model), speculative_config={"method": "mtp", "num_speculative_tokens": 1})
    shutil.copytree(toy_model, tmp_path / "t")
    config = json.loads((tmp_path / "t/config.json").read_text())
    config |= {"architectures": ["MiMoForCausalLM"], "num_nextn_predict_layers": 1}
    (tmp_path / "t/config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="does not contain MTP weights"):
        LLM(str(tmp_path / "t"), speculative_config={"method": "mtp", "num_speculative_tokens": 1})
