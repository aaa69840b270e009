"""From a checkpoint directory to a Target."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from augury.model import dense
from augury.model.checkpoint import Checkpoint, layers_config, read_config
from augury.model.encoders import explained
from augury.model.errors import ModelError
from augury.model.mixture_plan import has_mixtures
from augury.model.packed import PACKED_FILE
from augury.model.rope import head_dim, switch_length
from augury.model.rounded import KINDS
from augury.model.schemes import read_scheme
from augury.model.split import Heads, Split
from augury.model.target import Target

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
STORED = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}


def load_target(
    directory: Path | str,
    dtype: str = "auto",
    device: torch.device | str = "cpu",
    max_model_len: int | None = None,
    implementation: str = "auto",
    packed: bool = True,
    dummy: bool = False,
    exact: bool = False,
    fast: bool = False,
    split: Split | None = None,
    quantization: str | None = None,
) -> Target:
    """Load a model: `dense` for the families it knows, transformers through `adapter` for every other.

    Converted GGUF models run in the precision of their file where the CPU kernels can: the same numbers, less memory
    read. `dummy` reads config.json alone and makes random weights. `exact`: on a GPU a row's bits depend on its own
    tokens alone, as they do on a CPU. `fast`: activations are rounded to 8 bits where weights are packed. `split`: this
    rank's part of the model. `quantization`: "fp8", or "int8" and "int4" on a CPU, rounds the layers' matrices of a
    plain checkpoint; that of a quantised checkpoint is found in its config.json.
    """
    directory, device = Path(directory), torch.device(device)
    config = layers_config(directory)
    rounds = _check_quantization(config, quantization)
    kind = choose_dtype(directory, dtype, device, dummy)
    packed = packed and not dummy and device.type == "cpu" and kind == torch.float32
    packed = packed and (directory / PACKED_FILE).is_file()
    fits = runs_dense(config)
    if rounds:
        _check_rounded(rounds, device, kind, packed, config)
    if implementation == "dense" and not fits:
        raise ModelError(f"model type {config.model_type!r} has no dense implementation; use 'auto' or 'adapter'.")
    if split is not None:
        check_split(config, implementation, split.ranks.size, split.field)
    if implementation == "adapter" or not fits:
        asked = "exact=True" if exact and device.type != "cpu" else f"quantization={quantization!r}" if rounds else ""
        if asked:
            raise ModelError(f"{asked} needs our own model code, and {config.model_type!r} runs through transformers.")
        from augury.model.adapter import Adapter

        with explained(directory):
            return Adapter.load(directory, kind, device, max_model_len, dummy)
    with explained(directory):
        return dense.Dense.load(directory, kind, device, max_model_len, packed, dummy, exact, fast, split, rounds)


def _check_quantization(config: Any, asked: str | None) -> str:
    """How matrices are to be rounded, empty for not; refuses what the checkpoint neither has nor can be given."""
    written = getattr(config, "quantization_config", None)
    if read_scheme(written, asked) is not None or asked is None:
        return ""
    if asked not in ("fp8", *KINDS):
        raise ModelError(
            f"quantization={asked!r} is for checkpoints that are quantised so; for this one use 'fp8', or on a CPU "
            "'int8' or 'int4'."
        )
    return asked


def _check_rounded(asked: str, device: torch.device, dtype: torch.dtype, packed: bool, config: Any) -> None:
    """Refuse to round where no kernel of ours would read the result, or the weights are rounded already."""
    if asked in KINDS and device.type != "cpu":
        raise ModelError(f"quantization={asked!r} is for CPUs; on a GPU use 'fp8'.")
    if asked in KINDS and dtype != torch.float32:
        raise ModelError(f"quantization={asked!r} needs float32 activations; leave out dtype.")
    if packed:
        raise ModelError(
            f"quantization={asked!r}: this model's weights are quantised already; leave it out, or give "
            "load_format='safetensors' to round them again."
        )
    if runs_dense(config) and has_mixtures(config):
        raise ModelError(
            f"quantization={asked!r} does not round the experts of {config.model_type!r} yet; leave it out."
        )


def check_split(config: Any, implementation: str, size: int, field: str = "tensor_parallel_size") -> None:
    """Refuse to divide a model that cannot be divided among so many ranks."""
    if implementation == "adapter" or not runs_dense(config):
        raise ModelError(
            f"{field}={size} needs our own model code, and {config.model_type!r} runs through transformers; write 1, "
            f"or use a model of type {', '.join(dense.MODEL_TYPES)}."
        )
    if has_mixtures(config):
        raise ModelError(f"{field}={size} cannot divide the experts of {config.model_type!r} yet; write 1.")
    Heads(config.num_attention_heads, config.num_key_value_heads, head_dim(config)).check(size, field)


def runs_dense(config: Any) -> bool:
    """Whether dense.py computes exactly what this configuration means."""
    if config.model_type not in dense.MODEL_TYPES:
        return False
    if getattr(config, "quantization_config", None) and has_mixtures(config):
        return False  # no kernel here reads codes of experts
    return config.hidden_act in ("silu", "swish") and not switch_length(config)


def has_plain_layers(config: Any) -> bool:
    """Whether all layers are dense ones without experts, the kind that heads are trained for."""
    return runs_dense(config) and not has_mixtures(config)


def choose_dtype(directory: Path, name: str, device: torch.device, dummy: bool = False) -> torch.dtype:
    """`auto` is float32 on a CPU and the checkpoint's own type on a GPU; a dummy's is what config.json states."""
    if name not in ("auto", *DTYPES):
        raise ModelError(f"dtype {name!r} is unknown; use auto, {', '.join(DTYPES)}.")
    if name == "float16" and device.type == "cpu":
        raise ModelError("float16 is slow and inexact on a CPU; use bfloat16 or float32.")
    if name != "auto":
        return DTYPES[name]
    if device.type == "cpu":
        return torch.float32
    if dummy:
        return _stated(directory)
    with Checkpoint(directory) as checkpoint:
        stored = checkpoint.dtype()
    return STORED[stored] if stored in STORED else _stated(directory)  # codes of quantised weights say nothing


def _stated(directory: Path) -> torch.dtype:
    stated = getattr(read_config(directory, quantised=True), "dtype", None)
    return next((kind for kind in DTYPES.values() if kind == stated), torch.bfloat16)


def choose_head_dtype(name: str, target: Target) -> torch.dtype:
    """The type of a drafter's weights: what the user asked for, else the target's own."""
    wanted = {"half": "float16", "float": "float32"}.get(name, name)
    return DTYPES.get(wanted, target.cache_dtype)
