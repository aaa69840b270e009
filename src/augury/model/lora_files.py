"""peft's files: adapter_config.json and adapter_model.safetensors, checked against the model they are for."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from augury.model.errors import ModelError, one_line

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
# base_model.model.model.layers.3.self_attn.q_proj.lora_A.weight
NAME = re.compile(r"(?:base_model\.model\.)?(?:model\.)?layers\.(\d+)\.(\w+)\.(\w+)\.lora_([AB])(?:\.\w+)?\.weight")
# What changes the arithmetic and is not done here; each with the values that ask for nothing.
REFUSED: dict[str, tuple[Any, ...]] = {
    "use_dora": (None, False),
    "bias": (None, "none"),
    "modules_to_save": (None, []),
    "fan_in_fan_out": (None, False),
    "layer_replication": (None, []),
    "lora_bias": (None, False),
    "alora_invocation_tokens": (None, []),
    "trainable_token_indices": (None, [], {}),
}
Factors = dict[tuple[int, str], tuple[Tensor, Tensor]]  # by layer and projection: A [rank, in], B [out, rank], scaled


def read_adapter(directory: Path, shapes: dict[str, tuple[int, int]], layers: int, max_rank: int) -> Factors:
    """Every factor of an adapter; `shapes` has (out, in) of each projection that may have one."""
    config = _config(directory)
    tensors = _tensors(directory)
    pairs: dict[tuple[int, str], dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        found = NAME.fullmatch(name)
        if found is None or found[3] not in shapes or int(found[1]) >= layers:
            raise ModelError(
                f"{directory}: no place for {name!r}; adapters of {', '.join(shapes)} in {layers} layers run here."
            )
        pairs.setdefault((int(found[1]), found[3]), {})[found[4]] = tensor
    if not pairs:
        raise ModelError(f"{directory}: {WEIGHTS} holds no factors.")
    return {
        key: _checked(directory, key, pair, shapes[key[1]], max_rank, config) for key, pair in sorted(pairs.items())
    }


def _config(directory: Path) -> dict[str, Any]:
    try:
        config = json.loads((directory / CONFIG).read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelError(
            f"{directory}: {CONFIG} cannot be read ({error.strerror}); give a directory of peft's."
        ) from None
    except ValueError:
        raise ModelError(f"{directory}: {CONFIG} is not JSON.") from None
    if not isinstance(config, dict) or config.get("peft_type") != "LORA":
        raise ModelError(f"{directory}: {CONFIG} is of another kind than peft_type 'LORA'.")
    for name, nothing in REFUSED.items():
        if config.get(name) not in nothing:
            raise ModelError(f"{directory}: {name}={config[name]!r} is not supported; train the adapter without it.")
    return config


def _tensors(directory: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    file = directory / WEIGHTS
    if not file.is_file():
        raise ModelError(
            f"{directory}: no {WEIGHTS}; save the adapter with safe_serialization=True (pickles are not read)."
        )
    try:
        tensors: dict[str, Tensor] = load_file(file)
    except Exception as error:  # the library raises its own kinds
        raise ModelError(f"{file}: not a safetensors file ({one_line(error)}).") from None
    return tensors


def _checked(
    directory: Path,
    key: tuple[int, str],
    pair: dict[str, Tensor],
    shape: tuple[int, int],
    max_rank: int,
    config: dict[str, Any],
) -> tuple[Tensor, Tensor]:
    where = f"{directory}: layer {key[0]}, {key[1]}"
    if len(pair) != 2:
        raise ModelError(f"{where}: lora_A or lora_B is missing.")
    down, up = pair["A"].float(), pair["B"].float()
    rank = len(down)
    if down.shape != (rank, shape[1]) or up.shape != (shape[0], rank):
        stated = f"lora_A {tuple(down.shape)} and lora_B {tuple(up.shape)}"
        raise ModelError(f"{where}: {stated} do not fit a matrix of {shape[0]} x {shape[1]}; it is of another model.")
    if rank > max_rank:
        raise ModelError(f"{where}: rank {rank} is more than max_lora_rank={max_rank}; raise that.")
    if not (torch.isfinite(down).all() and torch.isfinite(up).all()):
        raise ModelError(f"{where}: values that are no numbers.")
    return down, up * _scale(config, key, rank)


def _scale(config: dict[str, Any], key: tuple[int, str], rank: int) -> float:
    """peft's scaling: alpha over the rank, or over its root; a pattern may give a projection an alpha of its own."""
    alpha, name = config.get("lora_alpha", rank), f"layers.{key[0]}.{key[1]}"
    for pattern, own in (config.get("alpha_pattern") or {}).items():
        # The parent between the layer and the projection is not told here, so a pattern is matched by its end.
        if re.search(rf"(^|\.){pattern}$", name) or pattern.split(".")[-1] == key[1]:
            alpha = own
    return float(alpha) / (math.sqrt(rank) if config.get("use_rslora") else rank)
