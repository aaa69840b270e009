"""Writes trained drafters as checkpoints, in the layouts of published ones."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from augury.config.errors import ConfigError
from augury.config.fingerprint import fingerprint, name_of
from augury.methods.facts import MARK

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json")


def read_checkpoint(drafter: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Read what `write_checkpoint` wrote: a configuration and tensors."""
    try:
        config, tensors = json.loads((drafter / "config.json").read_text()), load_file(drafter / "model.safetensors")
    except (OSError, ValueError, RecursionError, SafetensorError) as error:
        raise ConfigError(f"{drafter} is not a readable drafter ({error}).") from None
    if not isinstance(config, dict):
        raise ConfigError(f"{drafter} is not a readable drafter (its config.json is not a JSON object).")
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not tensor.isfinite().all():
            raise ConfigError(f"{drafter} is not a usable drafter ({name} has NaN or infinite values).")
    return config, tensors


def write_checkpoint(directory: Path, tensors: dict[str, Tensor], config: dict[str, Any]) -> Path:
    """Write a directory with config.json and model.safetensors."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    plain = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()}
    save_file(plain, directory / "model.safetensors", {"format": "pt"})
    return directory


def export(module: nn.Module, config: dict[str, Any], directory: Path, rename: Callable[[str], str] = str) -> Path:
    """Write a module as a checkpoint, its tensors named by `rename`."""
    return write_checkpoint(directory, {rename(name): t for name, t in module.state_dict().items()}, config)


def halved(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors with all matrices in bf16: a trained head does not need more on disk."""
    return {name: t.to(torch.bfloat16) if t.dim() == 2 else t for name, t in tensors.items()}


def linked_copy(source: Path, directory: Path, config: dict[str, Any]) -> Path:
    """Copy a model's directory with another configuration; its weights are hard links where possible."""
    directory.mkdir(parents=True, exist_ok=True)
    for file in sorted(source.iterdir()):
        if not file.is_file() or file.name in ("config.json", "augury.json"):
            continue
        (directory / file.name).unlink(missing_ok=True)  # of an earlier export: a link to the source itself
        try:
            os.link(file.resolve(), directory / file.name)
        except OSError:  # another file system, or one without hard links
            shutil.copyfile(file, directory / file.name)
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    return directory


def name_target(directory: Path, target: Path) -> None:
    """Write into a drafter's config.json which target it was trained for; with any other it is refused by name."""
    file = directory / "config.json"
    mark = {"name": name_of(target), "fingerprint": fingerprint(target)}
    file.write_text(json.dumps({**json.loads(file.read_text()), MARK: mark}, indent=2) + "\n")


def copy_tokenizer(source: Path, directory: Path) -> None:
    """Copy the tokenizer files, which a draft model needs from its target."""
    for name in TOKENIZER_FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, directory / name)
