"""Checks and fixes that a transformers model needs before rows can run through it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

from augury.model.errors import ModelError
from augury.model.foreign_attention import current
from augury.model.mixers import HYBRIDS
from augury.model.rope import long_tables, rotary_tables, switch_length

ATTENTION_KINDS = {"full_attention", "sliding_attention", "chunked_attention"}


def refuse(config: Any) -> None:
    """Raise a ModelError for a model that keeps state outside the KV cache or computes attention by itself."""

    def because(why: str) -> ModelError:
        return ModelError(f"model type {config.model_type!r} cannot run here: {why}.")

    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING or config.is_encoder_decoder:
        raise because("it is not a causal language model of transformers")
    model_class: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    if config.model_type not in HYBRIDS:
        kinds = set(getattr(config, "layer_types", None) or ()) - ATTENTION_KINDS
        if getattr(model_class, "_is_stateful", False) or "linear_attention" in kinds:
            # Families share the names of kinds and not what these compute, so the message says which ones run.
            what = f"recurrent layers ({', '.join(sorted(kinds))})" if kinds else "a recurrent state"
            running = ", ".join(sorted(HYBRIDS))
            raise because(f"it has {what} of an unsupported kind; supported families of that sort: {running}")
        if kinds:
            raise because(f"it has layers of kind {', '.join(sorted(kinds))}")
    # Some hybrid families attend through the interface without saying so; the dry run counts what really does.
    declared = model_class._supports_attention_backend or config.model_type in HYBRIDS
    if not model_class._can_set_attn_implementation() or not declared:
        raise because("it does not use transformers' attention interface")


@contextmanager
def quietly() -> Iterator[None]:
    """Silence transformers' progress bars and reports; our own errors say what does not fit."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def decoder_of(model: Any) -> Any:
    """The module that turns tokens into hidden states; Llama 4's get_decoder names the whole model."""
    decoder = model.get_decoder()
    return model.model if decoder is model else decoder


def decoder_layers(model: Any) -> list[nn.Module]:
    """The decoder layers in order."""
    wanted = model.config.get_text_config(decoder=True).num_hidden_layers
    for module in decoder_of(model).modules():
        if isinstance(module, nn.ModuleList) and len(module) == wanted:
            return list(module)
    raise ModelError(f"model type {model.config.model_type!r} cannot run here: its decoder layers were not found.")


def fix_rotary(model: nn.Module, config: Any, length: int) -> None:
    """Make rotary scalings that look at the longest position of a pass look at each row's own position instead."""
    for module in model.modules():
        kind = getattr(module, "rope_type", None)
        kinds = set(kind.values()) if isinstance(kind, dict) else {kind}
        if not kinds & {"dynamic", "longrope"}:
            continue
        if isinstance(kind, dict):
            raise ModelError(f"model type {config.model_type!r} cannot run here: {kind} rotary scaling by layer type.")
        if switch_length(config):
            module.forward = _switched(*long_tables(config, length), switch_length(config))
        else:
            module.forward = _tabulated(*rotary_tables(config, length))


def _tabulated(cos: Tensor, sin: Tensor) -> Any:
    def forward(x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        nonlocal cos, sin
        cos, sin = cos.to(x.device), sin.to(x.device)
        lines = [table[position_ids] for table in (cos, sin)]
        return tuple(torch.cat((line, line), dim=-1).to(x.dtype) for line in lines)  # type: ignore[return-value]

    return forward


def _switched(short: tuple[Tensor, Tensor], long: tuple[Tensor, Tensor], switch: int) -> Any:
    """The short table or the long one, by the length of a row's sequence; if rows do not say, by their own position."""
    by_short, by_long = _tabulated(*short), _tabulated(*long)

    def forward(x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        said = current.get().long
        beyond = (position_ids >= switch if said is None else said[None].bool())[..., None]
        found = zip(by_short(x, position_ids), by_long(x, position_ids), strict=True)
        return tuple(torch.where(beyond, theirs, ours) for ours, theirs in found)  # type: ignore[return-value]

    return forward
