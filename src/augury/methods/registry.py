"""Every method by name. A name without a drafter behind it is `planned`, and refused with that word."""

from __future__ import annotations

from importlib import import_module

from augury.methods.ngram import NGRAM
from augury.methods.spec import Method

METHODS: dict[str, Method] = {card.name: card for card in (NGRAM,)}

# Known to vLLM, still to come here.
PLANNED = (
    "ngram_gpu", "suffix", "medusa", "mlp_speculator", "draft_model", "eagle", "eagle3", "mtp", "dflash",
    "extract_hidden_states", "custom_class",
)  # fmt: skip


def drafter_class(method: Method) -> type:
    """Import the drafter a card points to."""
    module, _, name = method.drafter.partition(":")
    found: type = getattr(import_module(module), name)
    return found
