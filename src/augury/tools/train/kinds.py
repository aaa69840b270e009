"""What may be asked of a kind of drafter: told before anything is loaded, for a training and for a plan of it."""

from __future__ import annotations

from augury.config.errors import ConfigError
from augury.methods.registry import kind, kinds

LAYERS = 2  # of a stack of a model's layers, where no number is given


def usual_layers(method: str) -> int:
    """How many it has where no number is given."""
    return LAYERS if kind(method).layers in ("its own", "the target's") else 1


def check_kind(method: str, layers: int | None) -> None:
    """Refuse a kind that there is not, and layers of one that is no stack of them."""
    if not kind(method).layers and layers is not None:
        stacks = [name for name, one in kinds().items() if one.layers]
        raise ConfigError(f"--layers {layers}: {method} is no stack of layers; {', '.join(stacks)} are. Leave it out.")


def check_size(method: str, layers: int | None, vocabulary: int, target_layers: int, target_words: int) -> None:
    """Refuse what is larger than the target has it."""
    if vocabulary > target_words:
        raise ConfigError(f"--vocabulary {vocabulary}: the target has only {target_words} words.")
    if layers is not None and kind(method).layers == "the target's" and layers >= target_layers:
        raise ConfigError(f"--layers {layers}: the target has {target_layers}, and a {method} must have fewer.")
