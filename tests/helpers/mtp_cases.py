"""Targets with MTP layers of every naming: their formula in plain torch, and the files."""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from eagle_cases import config_of
from formulas_eagle import DecoderLayer, causal
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, DeepseekV3Config, Glm4MoeConfig, Glm4MoeLiteConfig

from augury.model.heads.mtp import LAYOUTS

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

    def published(self, config: Any, i: int = 0) -> dict[str, Tensor]:
        """Its tensors by the names of the layout, as layer i."""
        layout = self.layout
        prefix = layout.prefix(config, i)
        names = {"token.": layout.token_norm, "state.": layout.hidden_norm, "final.": layout.norm, "join.": layout.join}
        found = {}
        for name, tensor in self.state_dict().items():
            for ours, theirs in names.items():
                if name.startswith(ours):
                    name = f"{theirs}.{name.removeprefix(ours)}"
            if name.startswith("block."):
                name = f"{layout.block.format(i)}{name.removeprefix('block.')}"
            value = tensor - 1.0 if layout.centred and tensor.dim() == 1 else tensor
            found[f"{prefix}{name}"] = value.contiguous()
        return found


def make_layers(config: Any, layout: Any, count: int) -> list[Mtp]:
    """Random layers; under "mtp." they share all but the decoder layer."""
    layers = [Mtp(config, layout) for _ in range(count)]
    for later in layers[1:] if layout.block else ():
        first = layers[0]
        later.token, later.state, later.final, later.join = first.token, first.state, first.final, first.join
    return layers


def with_layer(toy_model: Path, directory: Path, module: Mtp | list[Mtp], shards: bool = False) -> Path:
    """The toy target with the extra layers among its tensors."""
    modules = module if isinstance(module, list) else [module]
    shutil.copytree(toy_model, directory, dirs_exist_ok=True)
    config = json.loads((directory / "config.json").read_text())
    config |= {"architectures": ["MiMoForCausalLM"], "num_nextn_predict_layers": len(modules)}
    (directory / "config.json").write_text(json.dumps(config))
    tensors, extra = load_file(directory / "model.safetensors"), dict[str, Tensor]()
    for i, one in enumerate(modules):
        extra |= one.published(config_of(config), i)
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


FOREIGN: dict[str, Any] = {
    "DeepSeek-V3": DeepseekV3Config(
        **SIZES,
        num_key_value_heads=4,
        q_lora_rank=24,
        kv_lora_rank=16,
        qk_nope_head_dim=16,
        qk_rope_head_dim=8,
        v_head_dim=12,
        first_k_dense_replace=1,
        **EXPERTS,
    ),
    "GLM-4.5": Glm4MoeConfig(  # type: ignore[call-arg]  # a configuration takes any keyword
        **SIZES, num_key_value_heads=2, head_dim=16, first_k_dense_replace=1, **EXPERTS
    ),
    "GLM-4.7-Flash": Glm4MoeLiteConfig(
        **SIZES,
        num_key_value_heads=4,
        q_lora_rank=24,
        kv_lora_rank=16,
        qk_nope_head_dim=16,
        qk_rope_head_dim=8,
        v_head_dim=12,
        mlp_layer_types=["dense", "sparse", "sparse"],
        **EXPERTS,
    ),
}


def foreign_parts() -> dict[str, Tensor]:
    return {
        "enorm": torch.rand(64) + 0.5,
        "hnorm": torch.rand(64) + 0.5,
        "shared_head.norm": torch.rand(64) + 0.5,
        "eh_proj": torch.randn(64, 128) * 0.1,
    }


def foreign_layer(whole: Any, parts: dict[str, Tensor], i: int, embedded: Tensor, hidden: Tensor) -> Tensor:
    """MTP layer i by its formula, with transformers' own decoder layer in the middle: normed states [T, H]."""

    def normed(x: Tensor, part: str) -> Tensor:
        return F.rms_norm(x, (64,), parts[part], whole.config.rms_norm_eps)

    embedded, positions = embedded.clone(), torch.arange(len(embedded))[None]
    embedded[0] = 0.0  # DeepSeek blanks the token at position 0
    x = torch.cat([normed(embedded, "enorm"), normed(hidden, "hnorm")], dim=1) @ parts["eh_proj"].T
    return normed(foreign_block(whole, 2 + i, x, positions), "shared_head.norm")


def foreign_block(whole: Any, i: int, x: Tensor, positions: Tensor) -> Tensor:
    mask = torch.full((len(x), len(x)), float("-inf")).triu(1)[None, None]
    angles = whole.model.rotary_emb(x[None], positions)
    out = whole.model.layers[i](x[None], attention_mask=mask, position_ids=positions, position_embeddings=angles)
    return (out if isinstance(out, Tensor) else out[0])[0]


def with_foreign_layer(config: Any, directory: Path, count: int = 1) -> tuple[Any, list[dict[str, Tensor]]]:
    """A random model, written as one of two layers whose further ones are MTP layers; and the parts around each."""
    torch.manual_seed(11)
    config = copy.deepcopy(config)
    config.num_hidden_layers = 2 + count
    if getattr(config, "mlp_layer_types", None):
        config.mlp_layer_types = ["dense"] + ["sparse"] * (1 + count)
    whole = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval().requires_grad_(False)
    for name, tensor in whole.named_parameters():
        nn.init.normal_(tensor, 1.0 if "norm" in name else 0.0, 0.15)
    whole.save_pretrained(directory)
    parts = [foreign_parts() for _ in range(count)]
    file, named = directory / "model.safetensors", dict[str, Tensor]()
    for i, around in enumerate(parts):
        named |= {f"model.layers.{2 + i}.{k}.weight": v for k, v in around.items()}
    save_file(load_file(file) | named, file, {"format": "pt"})
    stated = json.loads((directory / "config.json").read_text())
    if stated.get("mlp_layer_types"):
        stated["mlp_layer_types"] = stated["mlp_layer_types"][:2]
    stated |= {"num_hidden_layers": 2, "num_nextn_predict_layers": count}
    (directory / "config.json").write_text(json.dumps(stated))
    return whole, parts
