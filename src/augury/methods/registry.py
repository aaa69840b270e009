"""Every method by name; none is here without a drafter."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from augury.methods.custom_class import CUSTOM_CLASS
from augury.methods.dflash import DFLASH
from augury.methods.draft_model import DRAFT_MODEL
from augury.methods.dspark import DSPARK
from augury.methods.eagle import EAGLE
from augury.methods.eagle3 import EAGLE3
from augury.methods.errors import ConfigError
from augury.methods.extract_hidden_states import EXTRACT_HIDDEN_STATES
from augury.methods.hybrid import HYBRID
from augury.methods.medusa import MEDUSA
from augury.methods.mlp_speculator import MLP_SPECULATOR
from augury.methods.mtp import MTP
from augury.methods.ngram import NGRAM
from augury.methods.ngram_gpu import NGRAM_GPU
from augury.methods.spec import Method, Trained
from augury.methods.suffix import SUFFIX

ORDINARY = DRAFT_MODEL  # what an ordinary language model drafts as
METHODS: dict[str, Method] = {
    card.name: card
    for card in (
        NGRAM,
        NGRAM_GPU,
        SUFFIX,
        DRAFT_MODEL,
        EAGLE,
        EAGLE3,
        MTP,
        MEDUSA,
        MLP_SPECULATOR,
        DFLASH,
        DSPARK,
        HYBRID,
        CUSTOM_CLASS,
        EXTRACT_HIDDEN_STATES,
    )
}
LOOK_UPS = {name: card.look_up for name, card in METHODS.items() if card.look_up}
ALIASES: dict[str, str] = {alias: card.name for card in METHODS.values() for alias in card.aliases}


def readers(key: str) -> tuple[str, ...]:
    """The methods that read a key; none by name means all of them."""
    return tuple(name for name, card in METHODS.items() if key in card.keys)


def kinds() -> dict[str, Trained]:
    """What can be trained, by name."""
    return {name: made for card in METHODS.values() for name, made in card.trained.items()}


def kind(name: str) -> Trained:
    """The trainable kind of that name, or a ConfigError that lists the names."""
    if name not in kinds():
        hint = " A plan is `augury train METHOD --plan`." if name == "plan" else ""
        raise ConfigError(f"augury train {name}: unknown; there are {', '.join(kinds())}.{hint}")
    return kinds()[name]


def load(path: str) -> Any:
    """Import what a card points to, written as "package.module:Class"."""
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)


def drafter_class(method: Method) -> type:
    """Import the drafter a card points to."""
    found: type = load(method.drafter)
    return found
