"""Small configurations of every hybrid family: recurrent or convolving layers beside attention."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import torch
from dense_cases import save_random
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    BambaConfig,
    FalconH1Config,
    GraniteMoeHybridConfig,
    Lfm2Config,
    Lfm2MoeConfig,
    NemotronHConfig,
    Qwen3_5MoeTextConfig,
    Qwen3_5TextConfig,
    Qwen3NextConfig,
)

SIZES: dict[str, Any] = {
    "vocab_size": 101,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.15,
    "bos_token_id": None,
    "eos_token_id": 3,
    "pad_token_id": 0,
}
DELTA: dict[str, Any] = {
    "head_dim": 16,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}
EXPERTS: dict[str, Any] = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
}
MAMBA: dict[str, Any] = {
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_n_groups": 2,
    "mamba_d_state": 16,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_chunk_size": 8,
}
HYBRIDS: dict[str, Any] = {
    "qwen3-next": Qwen3NextConfig(**SIZES, **DELTA, **EXPERTS),
    "qwen3.5": Qwen3_5TextConfig(**SIZES, **DELTA),
    "qwen3.5-moe": Qwen3_5MoeTextConfig(**SIZES, **DELTA, **EXPERTS),
    "nemotron-h": NemotronHConfig(
        **{k: v for k, v in SIZES.items() if k != "num_hidden_layers"},
        layers_block_type=["linear_attention", "mlp", "full_attention", "linear_attention"],
        head_dim=16,
        mamba_num_heads=8,
        mamba_head_dim=16,
        n_groups=2,
        ssm_state_size=16,
        conv_kernel=4,
        chunk_size=8,
    ),
    "falcon-h1": FalconH1Config(**SIZES, **MAMBA, mamba_d_ssm=128, mamba_rms_norm=True),
    "falcon-h1-gate": FalconH1Config(
        **SIZES,
        **MAMBA,
        mamba_d_ssm=128,
        mamba_rms_norm=False,
        ssm_in_multiplier=0.7,
        ssm_multipliers=[0.5, 0.9, 1.1, 0.8, 1.2],
    ),
    "granite-4": GraniteMoeHybridConfig(
        **SIZES,
        **MAMBA,
        layer_types=["linear_attention", "full_attention"] * 2,
        num_local_experts=4,
        num_experts_per_tok=2,
        shared_intermediate_size=32,
        position_embedding_type=None,
    ),
    "bamba": BambaConfig(**SIZES, **MAMBA, attn_layer_indices=[1]),
    "lfm2": Lfm2Config(**SIZES, layer_types=["conv", "full_attention", "conv", "conv"], conv_L_cache=3),
    "lfm2-moe": Lfm2MoeConfig(
        **SIZES,
        layer_types=["conv", "full_attention", "conv", "conv"],
        conv_L_cache=3,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=32,
        num_dense_layers=1,
    ),
}


def save_hybrid(name: str, directory: Path) -> Any:
    """A random model of a family, saved."""
    return save_random(copy.deepcopy(HYBRIDS[name]), directory)


class WithMtp(NamedTuple):
    """A target whose files hold MTP layers, and what these are made of."""

    target: Any  # the model that `generate` runs: without them
    whole: Any  # the same with the extra layers at its end
    parts: dict[str, Tensor]  # norms around zero and the joining matrix, by their names below "mtp."


def save_with_mtp(name: str, directory: Path, count: int) -> WithMtp:
    """Random weights; the extra layers attend, whatever the target's own pattern is."""
    config = copy.deepcopy(HYBRIDS[name])
    own, kinds = config.num_hidden_layers, list(config.layer_types)
    config.num_hidden_layers, config.layer_types = own + count, kinds + ["full_attention"] * count
    whole = save_random(config, directory)
    file, size = directory / "model.safetensors", config.hidden_size
    torch.manual_seed(12)
    parts = {
        f"{norm}.weight": torch.randn(size) * 0.2 for norm in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")
    }
    parts["fc.weight"] = torch.randn(size, 2 * size) * 0.1
    tensors = {f"mtp.{part}": tensor for part, tensor in parts.items()}
    for key, tensor in load_file(file).items():
        layer = re.match(r"model\.layers\.(\d+)\.(.*)", key)
        extra = layer is not None and int(layer[1]) >= own
        tensors[f"mtp.layers.{int(layer[1]) - own}.{layer[2]}" if layer is not None and extra else key] = tensor
    save_file(tensors, file, {"format": "pt"})
    stated = json.loads((directory / "config.json").read_text())
    depth = "mtp_num_hidden_layers" if name.startswith("qwen3.5") else "num_nextn_predict_layers"
    stated |= {"num_hidden_layers": own, "layer_types": kinds, depth: count}
    (directory / "config.json").write_text(json.dumps(stated))
    target = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager").eval()
    return WithMtp(target, whole, parts)


def save_as_speculator(directory: Path, into: Path, target: Any) -> Path:
    """The one MTP layer of a saved target in a directory of its own, by the names of the speculators format."""
    names = {
        "mtp.fc.": "input_proj.",
        "mtp.norm.": "final_layernorm.",
        "mtp.pre_fc_norm_hidden.": "hidden_layernorm.",
        "mtp.pre_fc_norm_embedding.": "token_layernorm.",
        "mtp.layers.0.": "",
    }
    tensors = {
        f"mtp_layers.0.{theirs}{key.removeprefix(ours)}": tensor
        for key, tensor in load_file(directory / "model.safetensors").items()
        for ours, theirs in names.items()
        if key.startswith(ours)
    }
    into.mkdir()
    save_file(tensors, into / "model.safetensors", {"format": "pt"})
    config = {
        "architectures": ["MTPDraftModel"],
        "speculators_model_type": "mtp",
        "num_nextn_predict_layers": 1,
        "transformer_layer_config": target.config.to_diff_dict(),
        "speculators_config": {
            "algorithm": "mtp",
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3}],
            "verifier": {"name_or_path": str(directory), "architectures": []},
        },
    }
    (into / "config.json").write_text(json.dumps(config))
    return into
