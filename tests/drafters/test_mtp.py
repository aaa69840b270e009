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
from eagle_cases import TEXT, config_of, run_whole
from formulas_eagle import DecoderLayer, causal
from gate import Studied, overfit
from generating import DEVICE, PROMPTS, ids
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, DeepseekV3Config, Glm4MoeConfig, Glm4MoeLiteConfig, Qwen2Config

from augury import LLM, SamplingParams
from augury.model.errors import ModelError
from augury.model.heads.mtp import LAYOUTS, MtpHead
from augury.model.load import load_target
from augury.model.target import NORMED

SIZES: dict[str, Any] = {
    "vocab_size": 260,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
    "eos_token_id": 256,
    "bos_token_id": None,
}
EXPERTS: dict[str, Any] = {
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "n_group": 2,
    "topk_group": 1,
}
BY_NAME = {layout.name: layout for layout in LAYOUTS}


class Mtp(nn.Module):
    """Straight from the formula; `layout` says in which order and with which norms."""

    def __init__(self, config: Any, layout: Any) -> None:
        super().__init__()
        self.layout, size = layout, config.hidden_size
        self.token, self.state, self.final = (nn.RMSNorm(size, eps=config.rms_norm_eps) for _ in range(3))
        self.join = nn.Linear(2 * size, size, bias=False)
        self.block = DecoderLayer(config, size, input_norm=True)
        for name, tensor in self.named_parameters():
            centre = 1.0 if any(word in name for word in ("norm", "token", "state", "final")) else 0.0
            nn.init.normal_(tensor, centre, 0.1)

    def forward(self, embedded: Tensor, hidden: Tensor) -> Tensor:
        """The normed states [T, H], read by the target's head and handed on."""
        positions = torch.arange(len(embedded))
        if self.layout.blanks_start:
            embedded = torch.where((positions == 0)[:, None], 0.0, embedded)
        token, state = self.token(embedded), self.state(hidden)
        x = self.join(torch.cat([state, token] if self.layout.hidden_first else [token, state], dim=1))
        x = self.block.after(self.block.self_attn(self.block.input_layernorm(x), positions, causal(len(x))), x)
        return self.final(x)

    def published(self, config: Any) -> dict[str, Tensor]:
        """Its tensors by the names of the layout."""
        layout = self.layout
        prefix = layout.prefix(config)
        names = {"token.": layout.token_norm, "state.": layout.hidden_norm, "final.": layout.norm, "join.": layout.join}
        found = {}
        for name, tensor in self.state_dict().items():
            for ours, theirs in names.items():
                if name.startswith(ours):
                    name = f"{theirs}.{name.removeprefix(ours)}"
            if name.startswith("block."):
                name = f"{layout.block}{name.removeprefix('block.')}"
            value = tensor - 1.0 if layout.centred and tensor.dim() == 1 else tensor
            found[f"{prefix}{name}"] = value.contiguous()
        return found


def with_layer(toy_model: Path, directory: Path, module: Mtp, layout: Any, shards: bool = False) -> Path:
    """The toy target with the extra layer among its tensors."""
    shutil.copytree(toy_model, directory, dirs_exist_ok=True)
    config = json.loads((directory / "config.json").read_text())
    config |= {"architectures": ["MiMoForCausalLM"], "num_nextn_predict_layers": 1}
    (directory / "config.json").write_text(json.dumps(config))
    tensors, extra = load_file(directory / "model.safetensors"), module.published(config_of(config))
    if not shards:
        save_file(tensors | extra, directory / "model.safetensors", {"format": "pt"})
        return directory
    (directory / "model.safetensors").unlink()
    parts = {"model-1.safetensors": tensors, "model-2.safetensors": extra}
    for name, part in parts.items():
        save_file(part, directory / name, {"format": "pt"})
    table = {tensor: name for name, part in parts.items() for tensor in part}
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": table}))
    return directory


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
    directory = with_layer(toy_model, tmp_path / "m", module, BY_NAME[name], shards)
    target = load_target(directory, "float32", "cpu")
    head = MtpHead.load(directory, target, torch.float32, 512)
    assert head.layout.name == name
    streams = studied.streams(TEXT, (NORMED,))
    logits, onward = run_whole(head, TEXT, streams)
    want = module(studied.embed(TEXT[1:]), streams[:-1])
    torch.testing.assert_close(onward, want, atol=1e-4, rtol=1e-3)
    torch.testing.assert_close(logits, studied.head(want), atol=1e-3, rtol=1e-3)


FOREIGN: dict[str, Any] = {
    "DeepSeek-V3": DeepseekV3Config(
        **SIZES, num_key_value_heads=4, q_lora_rank=24, kv_lora_rank=16, qk_nope_head_dim=16, qk_rope_head_dim=8,
        v_head_dim=12, first_k_dense_replace=1, **EXPERTS,
    ),
    "GLM-4.5": Glm4MoeConfig(  # type: ignore[call-arg]  # a configuration takes any keyword
        **SIZES, num_key_value_heads=2, head_dim=16, first_k_dense_replace=1, **EXPERTS,
    ),
    "GLM-4.7-Flash": Glm4MoeLiteConfig(
        **SIZES, num_key_value_heads=4, q_lora_rank=24, kv_lora_rank=16, qk_nope_head_dim=16, qk_rope_head_dim=8,
        v_head_dim=12, mlp_layer_types=["dense", "sparse", "sparse"], **EXPERTS,
    ),
}  # fmt: skip


def with_foreign_layer(config: Any, directory: Path) -> tuple[Any, dict[str, Tensor]]:
    """A random model of three layers, written as one of two whose third is its MTP layer; and the parts around it."""
    torch.manual_seed(11)
    whole = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval().requires_grad_(False)
    for name, tensor in whole.named_parameters():
        nn.init.normal_(tensor, 1.0 if "norm" in name else 0.0, 0.15)
    whole.save_pretrained(directory)
    parts = {
        "enorm": torch.rand(64) + 0.5,
        "hnorm": torch.rand(64) + 0.5,
        "shared_head.norm": torch.rand(64) + 0.5,
        "eh_proj": torch.randn(64, 128) * 0.1,
    }
    file = directory / "model.safetensors"
    save_file(load_file(file) | {f"model.layers.2.{k}.weight": v for k, v in parts.items()}, file, {"format": "pt"})
    stated = json.loads((directory / "config.json").read_text())
    if stated.get("mlp_layer_types"):
        stated["mlp_layer_types"] = stated["mlp_layer_types"][:2]
    stated |= {"num_hidden_layers": 2, "num_nextn_predict_layers": 1}
    (directory / "config.json").write_text(json.dumps(stated))
    return whole, parts


@pytest.mark.parametrize("name", FOREIGN)
def test_layers_with_experts_or_latent_attention(tmp_path: Path, name: str) -> None:
    """DeepSeek's and GLM's own: the layer is one of the target's class, run by itself."""
    whole, parts = with_foreign_layer(FOREIGN[name], tmp_path)
    target = load_target(tmp_path, "float32", "cpu")
    head = MtpHead.load(tmp_path, target, torch.float32, 512)
    assert target.num_layers == 2 and head.layout.name == "DeepSeek"
    text = [3, 9, 27, 81, 5, 25, 7, 49, 12]
    streams = torch.randn(len(text), 64)
    logits, onward = run_whole(head, text, streams)

    def normed(x: Tensor, part: str) -> Tensor:
        return F.rms_norm(x, (64,), parts[part], FOREIGN[name].rms_norm_eps)

    embedded, positions = whole.model.embed_tokens(torch.tensor(text[1:])), torch.arange(len(text) - 1)[None]
    embedded[0] = 0.0  # DeepSeek blanks the token at position 0
    x = torch.cat([normed(embedded, "enorm"), normed(streams[:-1], "hnorm")], dim=1) @ parts["eh_proj"].T
    mask = torch.full((len(x), len(x)), float("-inf")).triu(1)[None, None]
    angles = whole.model.rotary_emb(x[None], positions)
    out = whole.model.layers[2](x[None], attention_mask=mask, position_ids=positions, position_embeddings=angles)
    want = normed((out if isinstance(out, Tensor) else out[0])[0], "shared_head.norm")
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
    directory = with_layer(toy_model, tmp_path / "m", module, layout)
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

    overfit(module, loss, 250)
    return with_layer(toy_model, tmp_path_factory.mktemp("mtp") / "t", module, BY_NAME["DeepSeek"])


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
    directory = with_layer(tmp_path / "qwen2", tmp_path / "mimo", module, BY_NAME["MiMo"])
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
