"""Checks a config.json before any library trusts it: counts that the library would loop over must be plausible."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from augury.config.files import CONFIG_BYTES, read_regular
from augury.model.errors import ModelError

COUNTS = (  # the largest models have a few hundred layers, heads and experts
    "num_hidden_layers",
    "n_layer",
    "n_layers",
    "num_layers",
    "num_attention_heads",
    "n_head",
    "num_key_value_heads",
    "num_nextn_predict_layers",
    "num_experts",
    "num_local_experts",
    "n_routed_experts",
    "n_shared_experts",
)
SIZES = (
    "hidden_size",
    "intermediate_size",
    "moe_intermediate_size",
    "head_dim",
    "vocab_size",
    "max_position_embeddings",
)
MOST_COUNTED, LARGEST = 10_000, 2**31 - 1


def check_plausible(directory: Path) -> None:
    """Raise a ModelError for a config.json with numbers that no model has; missing numbers are not checked here."""
    file = directory / "config.json"
    if not file.is_file():
        return
    try:
        raw = json.loads(read_regular(file, CONFIG_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{file} cannot be read: {str(error)[:200]}") from None
    if not isinstance(raw, dict):
        raise ModelError(f"{file} is not a JSON object; a model's config.json is needed.")
    check_numbers(file, raw, raw.get("text_config"))


def check_numbers(file: Path, *parts: Any) -> None:
    """The same check for the parts of a file that describe layers."""
    for part in parts:
        for name, value in part.items() if isinstance(part, Mapping) else ():
            most = MOST_COUNTED if name in COUNTS else LARGEST if name in SIZES else None
            if most is not None and not _plausible(value, most):
                raise ModelError(f"{file}: {name}={str(value)[:40]!r} is not a number from 0 to {most:,}.")


def _plausible(value: Any, most: int) -> bool:
    """Whether a value is a number from 0 to `most`; some files write null for none, or a list with one per layer."""
    if isinstance(value, list):
        return all(_plausible(one, most) for one in value)
    return value is None or (type(value) is int and 0 <= value <= most)
