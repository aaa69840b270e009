"""peft's files: adapter_config.json and adapter_model.safetensors, checked against the model they are for."""

from __future__ import annotations

import re
from pathlib import Path

import torch
from torch import Tensor

from augury.model.errors import ModelError, one_line
from augury.model.lora_config import Scaling, read_scaling

WEIGHTS = "adapter_model.safetensors"
# base_model.model.model.layers.3.self_attn.q_proj.lora_A.weight
NAME = re.compile(r"(?:base_model\.model\.)?(?:model\.)?layers\.(\d{1,6})\.(\w+)\.(\w+)\.lora_([AB])(?:\.\w+)?\.weight")
BEFORE = "base_model.model.model."
Factors = dict[tuple[int, str], tuple[Tensor, Tensor]]  # by layer and projection: A [rank, in], B [out, rank], scaled


def read_adapter(directory: Path, shapes: dict[str, tuple[int, int]], layers: int, max_rank: int) -> Factors:
    """Every factor of an adapter; `shapes` has (out, in) of each projection that may have one."""
    scaling = read_scaling(directory, max_rank)
    tensors = _tensors(directory)
    names: dict[tuple[int, str], str] = {}
    pairs: dict[tuple[int, str], dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        found = NAME.fullmatch(name)
        if found is None or found[3] not in shapes or int(found[1]) >= layers:
            supported = f"{', '.join(shapes)} in {layers} layers"
            raise ModelError(
                f"{directory}: {name[:200]!r} matches no projection of this model; supported: {supported}."
            )
        key = int(found[1]), found[3]
        pairs.setdefault(key, {})[found[4]] = tensor
        names[key] = f"{BEFORE}layers.{key[0]}.{found[2]}.{key[1]}"
    if not pairs:
        raise ModelError(f"{directory}: {WEIGHTS} holds no factors.")
    return {
        key: _checked(directory, names[key], pair, shapes[key[1]], max_rank, scaling)
        for key, pair in sorted(pairs.items())
    }


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
    directory: Path, name: str, pair: dict[str, Tensor], shape: tuple[int, int], max_rank: int, scaling: Scaling
) -> tuple[Tensor, Tensor]:
    where = f"{directory}: {name.removeprefix(BEFORE)}"
    if len(pair) != 2:
        raise ModelError(f"{where}: lora_A or lora_B is missing.")
    if not all(one.dim() == 2 and one.is_floating_point() for one in pair.values()):
        raise ModelError(f"{where}: lora_A and lora_B must be matrices of floating-point numbers.")
    down, up = pair["A"].float(), pair["B"].float()
    rank = len(down)
    if not rank or down.shape != (rank, shape[1]) or up.shape != (shape[0], rank):
        stated = f"lora_A {tuple(down.shape)} and lora_B {tuple(up.shape)}"
        raise ModelError(f"{where}: {stated} do not fit a matrix of {shape[0]} x {shape[1]}; it is of another model.")
    if rank > max_rank:
        raise ModelError(f"{where}: rank {rank} is more than max_lora_rank={max_rank}; raise that.")
    up = up * scaling.of(name, rank)
    if not (torch.isfinite(down).all() and torch.isfinite(up).all()):
        raise ModelError(f"{where}: some values are not finite, or overflow once scaled.")
    return down, up
