"""Checks the options of a kind of drafter before anything is loaded, for training and for planning it."""

from __future__ import annotations

from augury.config.errors import ConfigError
from augury.methods.registry import kind, kinds

LAYERS = 2  # default for a stack of a model's layers


def usual_layers(method: str) -> int:
    """The default number of layers."""
    return LAYERS if kind(method).layers in ("its own", "the target's") else 1


def check_kind(method: str, layers: int | None) -> None:
    """Refuse an unknown kind, and a number of layers for a kind that is not a stack of layers."""
    if not kind(method).layers and layers is not None:
        stacks = [name for name, one in kinds().items() if one.layers]
        raise ConfigError(
            f"--layers {layers}: {method} is not a stack of layers; {', '.join(stacks)} are. Leave it out."
        )


def check_size(method: str, layers: int | None, vocabulary: int, target_layers: int, target_words: int) -> None:
    """Refuse a vocabulary or a number of layers too large for the target."""
    if vocabulary > target_words:
        raise ConfigError(f"--vocabulary {vocabulary}: the target has only {target_words} words.")
    if layers is not None and kind(method).layers == "the target's" and layers >= target_layers:
        raise ConfigError(f"--layers {layers}: the target has {target_layers}, and a {method} must have fewer.")
