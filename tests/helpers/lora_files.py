"""Adapters in peft's files, random and reproducible, and a model with one of them merged into its weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

PROJECTIONS = {
    "q_proj": "self_attn",
    "k_proj": "self_attn",
    "v_proj": "self_attn",
    "o_proj": "self_attn",
    "gate_proj": "mlp",
    "up_proj": "mlp",
    "down_proj": "mlp",
}


def write_adapter(
    model: Path,
    directory: Path,
    seed: int,
    rank: int = 4,
    modules: tuple[str, ...] = tuple(PROJECTIONS),
    size: float = 0.5,
    **config: Any,
) -> Path:
    """Write an adapter for a checkpoint: factors large enough to change what the model says."""
    directory.mkdir(parents=True, exist_ok=True)
    random = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, weight in _weights(model).items():
        module = name.split(".")[-2]
        if module in modules and PROJECTIONS.get(module) == name.split(".")[-3]:
            out, width = weight.shape
            at = f"base_model.model.{name.removesuffix('.weight')}"
            tensors[f"{at}.lora_A.weight"] = torch.randn(rank, width, generator=random) / width**0.5
            tensors[f"{at}.lora_B.weight"] = torch.randn(out, rank, generator=random) * size / rank
    save_file(tensors, directory / "adapter_model.safetensors")
    stated = {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "bias": "none", "task_type": "CAUSAL_LM"}
    stated |= {"target_modules": list(modules), "base_model_name_or_path": str(model), **config}
    (directory / "adapter_config.json").write_text(json.dumps(stated))
    return directory


def merged(model: Path, adapter: Path, directory: Path) -> Path:
    """The checkpoint with the adapter's products added to its matrices: what peft's merge_and_unload gives."""
    directory.mkdir(parents=True)
    for file in model.iterdir():
        if file.suffix != ".safetensors" and file.is_file():
            (directory / file.name).write_bytes(file.read_bytes())
    weights, factors = _weights(model), load_file(adapter / "adapter_model.safetensors")
    config = json.loads((adapter / "adapter_config.json").read_text())
    for name in [name for name in factors if "lora_A" in name]:
        at = name.removeprefix("base_model.model.").replace(".lora_A.weight", ".weight")
        down, up = factors[name], factors[name.replace("lora_A", "lora_B")]
        rank = len(down)
        scale = config["lora_alpha"] / (rank**0.5 if config.get("use_rslora") else rank)
        weights[at] = weights[at] + scale * (up @ down)
    save_file({name: tensor.contiguous() for name, tensor in weights.items()}, directory / "model.safetensors")
    return directory


def _weights(model: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for file in sorted(model.glob("*.safetensors")):
        found |= {name: tensor.float() for name, tensor in load_file(file).items()}
    return found
