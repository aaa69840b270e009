"""Exports a trained drafter in the format of the `speculators` library, which names its target in its config.json.

Names of keys and tensors are those of speculators 0.9.0; it and vLLM load such a directory by itself.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from augury.config.errors import ConfigError
from augury.config.facts import read_facts
from augury.methods.facts import MARK
from augury.methods.recognise import choose
from augury.methods.registry import METHODS, ORDINARY
from augury.methods.spec import Trained
from augury.model.heads.dflash_config import BORROWED, relative
from augury.train.export import read_checkpoint, write_checkpoint

VERSION = "0.9.0"
LAYER = tuple(
    """
    model_type hidden_size intermediate_size num_attention_heads num_key_value_heads head_dim num_hidden_layers
    rms_norm_eps vocab_size max_position_embeddings hidden_act tie_word_embeddings attention_bias mlp_bias
    """.split()
)
OWN = (
    "draft_vocab_size",
    "norm_before_residual",
    "norm_before_fc",
    "fc_norm",
    "norm_output",
    "target_hidden_size",
    "eagle_aux_hidden_state_layer_ids",
    "mask_token_id",
    "block_size",
    MARK,
)
PROFILE = "speculation_profile.json"


def as_speculator(drafter: Path, verifier: str, tokens: int, out: Path) -> str:
    """Write the drafter in that format, to draft `tokens` tokens for the target `verifier`; returns its type."""
    raw, tensors = read_checkpoint(drafter)
    if "speculators_model_type" in raw:
        raise ConfigError(f"{drafter} is in this format already; export the drafter it was made from.")
    kind = speculator_of(drafter, raw, tensors)
    if raw.get(BORROWED):  # other engines cannot borrow lines of the target's head: there it guesses among all tokens
        del tensors["d2t"]
    config = {
        "architectures": [kind.speculator[1]],
        "speculators_model_type": kind.speculator[0],
        "speculators_version": VERSION,
        "speculators_config": _proposal(kind.speculator[0], verifier, tokens),
        "transformer_layer_config": _layer(raw),
        **_own(raw),
    }
    write_checkpoint(out, {_named(name): tensor for name, tensor in tensors.items()}, config)
    if (drafter / PROFILE).is_file():
        shutil.copyfile(drafter / PROFILE, out / PROFILE)
    return kind.speculator[0]


def speculator_of(drafter: Path, raw: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Trained:
    """The kind of a drafter, by its files, with its type and class in the format; refused where the format has none."""
    found, masked = choose("", str(drafter), raw), "mask_hidden" in tensors
    card = METHODS[found.method] if found is not None else ORDINARY
    for kind in card.trained.values():
        if kind.speculator[0] and bool(kind.settings.get("parallel_drafting")) == masked and relative(raw) is None:
            return kind
    said = f" There is nothing to export of {card.name} drafters: {card.published}." if card.published else ""
    raise ConfigError(f"{drafter} cannot be exported; EAGLE-3, P-EAGLE and DFlash drafters can.{said}")


def _named(name: str) -> str:
    return name.replace("midlayer.", "layers.0.", 1) if name.startswith("midlayer.") else name


def _layer(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The layers' own configuration, with rotary frequencies as transformers states them now."""
    rope = raw.get("rope_parameters") or {"rope_type": "default", "rope_theta": raw.get("rope_theta", 10_000.0)}
    return {name: raw[name] for name in LAYER if name in raw} | {"rope_parameters": rope}


def _own(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The drafter's settings apart from its layers; the format counts layers already run, z-lab names the layer."""
    own = {name: raw[name] for name in OWN if name in raw}
    if inner := raw.get("dflash_config"):
        own["aux_hidden_state_layer_ids"] = [number + 1 for number in inner["target_layer_ids"]]
        own |= {"mask_token_id": inner["mask_token_id"], "draft_vocab_size": raw["vocab_size"]}
        return own
    # If absent it is false for the speculators library, and true for vLLM (0.32) where the type is eagle3.
    return {"norm_before_residual": False, **own}


def _proposal(algorithm: str, verifier: str, tokens: int) -> dict[str, Any]:
    greedy = {"proposal_type": "greedy", "speculative_tokens": tokens, "verifier_accept_k": 1, "accept_tolerance": 0.0}
    facts = read_facts(verifier)
    return {
        "algorithm": algorithm,
        "default_proposal_method": "greedy",
        "proposal_methods": [greedy],
        "verifier": {
            "name_or_path": verifier,
            "architectures": list(facts.raw.get("architectures") or []) if facts is not None else [],
        },
    }
