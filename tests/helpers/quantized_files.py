"""Quantised checkpoints, written by the formats' own formulas, and the plain checkpoints that they mean."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

FP8 = torch.float8_e4m3fn
AWQ_PLACES = (0, 2, 4, 6, 1, 3, 5, 7)  # which of eight neighbours lies in each place of a word
Tensors = dict[str, Tensor]
Written = tuple[Tensors, Tensor]  # the tensors of a module, and the matrix they mean


def words(codes: Tensor, places: tuple[int, ...] = tuple(range(8))) -> Tensor:
    """4-bit codes [..., 8 n] as int32 [..., n]."""
    eight = codes.long().unflatten(-1, (-1, 8))
    packed = sum(eight[..., index] << (4 * place) for place, index in enumerate(places))
    assert isinstance(packed, Tensor)
    return torch.where(packed >= 2**31, packed - 2**32, packed).to(torch.int32)


def by_line(matrix: Tensor, kind: torch.dtype = torch.bfloat16) -> Written:
    """compressed-tensors by channel: weight * weight_scale."""
    scale = (matrix.abs().amax(1, keepdim=True) / 448).to(kind)
    weight = (matrix / scale.float()).clamp(-448, 448).to(FP8)
    return {"weight": weight, "weight_scale": scale}, weight.float() * scale.float()


def by_matrix(matrix: Tensor) -> Written:
    """One scale for all, and one for activations that nobody reads."""
    scale = matrix.abs().max() / 448
    weight = (matrix / scale).clamp(-448, 448).to(FP8)
    return {"weight": weight, "weight_scale": scale, "input_scale": torch.tensor(0.1)}, weight.float() * scale


def by_block(matrix: Tensor, size: int = 32, name: str = "weight_scale_inv") -> Written:
    """DeepSeek's: weight * weight_scale_inv, block by block."""
    lines, columns = (-(-n // size) for n in matrix.shape)
    scale, wide = torch.empty(lines, columns), torch.empty_like(matrix)
    for i in range(lines):
        for j in range(columns):
            block = (slice(i * size, (i + 1) * size), slice(j * size, (j + 1) * size))
            wide[block] = scale[i, j] = matrix[block].abs().max() / 448
    weight = (matrix / wide).clamp(-448, 448).to(FP8)
    return {"weight": weight, name: scale}, weight.float() * wide


def _four_bits(matrix: Tensor, group: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Codes [out, in], zeros and scales [groups, out], and what they mean."""
    parts = matrix.unflatten(1, (-1, group))
    low, high = parts.amin(-1).clamp(max=0), parts.amax(-1).clamp(min=0)
    scale = ((high - low) / 15).half()
    zero = (-low / scale.float()).round().clamp(0, 15)
    codes = (parts / scale.float()[..., None] + zero[..., None]).round().clamp(0, 15)
    means = (codes - zero[..., None]) * scale.float()[..., None]
    return codes.flatten(1), zero.t(), scale.t().contiguous(), means.flatten(1)


def awq(matrix: Tensor, group: int = 32) -> Written:
    """qweight [in, out / 8] in AWQ's order: (code - zero) * scale."""
    codes, zeros, scales, means = _four_bits(matrix, group)
    return {"qweight": words(codes.t(), AWQ_PLACES), "qzeros": words(zeros, AWQ_PLACES), "scales": scales}, means


def gptq(matrix: Tensor, group: int = 32) -> Written:
    """qweight [in / 8, out]; zeros are stored less one."""
    codes, zeros, scales, means = _four_bits(matrix, group)
    tensors = {
        "qweight": words(codes).t().contiguous(),
        "qzeros": words((zeros - 1) % 16),
        "scales": scales,
        "g_idx": torch.arange(matrix.shape[1], dtype=torch.int32) // group,
    }
    return tensors, means


def packed(matrix: Tensor, group: int = 32) -> Written:
    """compressed-tensors' pack-quantized: codes with 8 added, (code - 8) * scale."""
    parts = matrix.unflatten(1, (-1, group))
    scale = (parts.abs().amax(-1) / 7).bfloat16()
    codes = (parts / scale.float()[..., None]).round().clamp(-8, 7)
    tensors = {
        "weight_packed": words(codes.flatten(1) + 8),
        "weight_scale": scale,
        "weight_shape": torch.tensor(matrix.shape),
    }
    return tensors, (codes * scale.float()[..., None]).flatten(1)


def _compressed(strategy: str, kind: str = "float", bits: int = 8, **more: Any) -> dict[str, Any]:
    weights = {"num_bits": bits, "type": kind, "strategy": strategy, "symmetric": True, "dynamic": False, **more}
    return {
        "quant_method": "compressed-tensors",
        "format": "float-quantized" if kind == "float" else "pack-quantized",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": None}},
        "ignore": ["lm_head"],
    }


FORMATS: dict[str, tuple[dict[str, Any], Callable[[Tensor], Written]]] = {
    "channel": (_compressed("channel"), by_line),
    "at load": (_compressed("channel"), lambda m: by_line(m, torch.float32)),
    "tensor": (_compressed("tensor"), by_matrix),
    "compressed block": (_compressed("block", block_structure=[32, 32]), lambda m: by_block(m, name="weight_scale")),
    "fp8": ({"quant_method": "fp8", "activation_scheme": "static"}, by_matrix),
    "deepseek": ({"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [32, 32]}, by_block),
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "zero_point": True}, awq),
    "gptq": ({"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": False}, gptq),
    "packed": (_compressed("group", "int", 4, group_size=32), packed),
}


def write_quantised(plain: Path, directory: Path, name: str, keep: tuple[str, ...] = ()) -> Path:
    """A checkpoint with its layers' matrices quantised, those in `keep` apart; beside it, in `means`, its meaning."""
    config, write = FORMATS[name]
    stored: Tensors = {}
    means: Tensors = {}
    for key, tensor in load_file(plain / "model.safetensors").items():
        module = key.removesuffix(".weight")
        if tensor.ndim == 2 and ".layers." in key and not any(word in key for word in keep):
            tensors, means[key] = write(tensor.float())
            stored |= {f"{module}.{part}": value.contiguous() for part, value in tensors.items()}
        else:
            stored[key] = means[key] = tensor
    raw = json.loads((plain / "config.json").read_text())
    places: list[tuple[Path, Tensors, dict[str, Any]]] = [
        (directory, stored, {"quantization_config": config}),
        (directory / "means", means, {}),
    ]
    for place, content, more in places:
        place.mkdir(parents=True, exist_ok=True)
        save_file(content, place / "model.safetensors")
        (place / "config.json").write_text(json.dumps(raw | more))
    return directory
