"""From what a user wrote to a SpeculativeConfig: names, old words, types, method, K, and what must agree."""

from __future__ import annotations

import json
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from augury.config.checks import check_against, check_mtp
from augury.config.details import name_served, name_unused, settle_details, settle_rule
from augury.config.errors import ConfigError, shown
from augury.config.facts import Target, read_facts
from augury.config.history import FILLED_IN, DroppedKeys, refuse_traps, renew_keys, renew_values
from augury.config.keys import declared
from augury.config.notes import Notes
from augury.config.releases import check_method, check_release, forgives, vllm_quirks
from augury.config.settle import EXAMPLE, mtp_depth, settle_method, settle_model, settle_tokens
from augury.config.speculative import SpeculativeConfig
from augury.config.validate import validated

KEYS = {**declared(SpeculativeConfig), **declared(DroppedKeys)}
DEFAULTS = {name: key.default for name, key in KEYS.items()}
ELSEWHERE = {
    "temperature": "a sampling parameter", "top_p": "a sampling parameter", "top_k": "a sampling parameter",
    "seed": "a sampling parameter", "gpu_memory_utilization": "an argument of the engine",
    "max_num_seqs": "an argument of the engine", "dtype": "an argument of the engine",
}  # fmt: skip
COMMON_SLIPS = {  # too far from the right name for a spelling check
    "k": "num_speculative_tokens", "num_tokens": "num_speculative_tokens", "spec_tokens": "num_speculative_tokens",
    "draft_model": "model", "speculative_model": "model", "draft_tp": "draft_tensor_parallel_size",
    "ngram_max": "prompt_lookup_max", "ngram_min": "prompt_lookup_min",
}  # fmt: skip


def resolve(given: Mapping[str, Any], target: Target | None, as_of: str | None) -> SpeculativeConfig:
    """Check and complete a configuration; its `notes` hold every decision."""
    target, notes = target or Target(), Notes()
    keys = clean_names(given, as_of, notes)
    refuse_traps(keys)
    if as_of is not None:
        check_release(keys, KEYS, as_of, notes)
    renew_values(keys, notes)
    old = validated(DroppedKeys, {name: keys.pop(name) for name in DroppedKeys.model_fields if name in keys})
    typed = validated(SpeculativeConfig, keys)
    keys = {name: getattr(typed, name) for name in keys if keys[name] is not None}
    draft = read_facts(keys["model"], keys.get("revision")) if keys.get("model") else None
    method = settle_method(keys, target, draft, notes)
    if as_of is not None:
        check_method(str(given.get("method") or method), as_of)
    if method == "mtp":
        check_mtp(keys, target)
    settle_model(method, keys, draft, notes)
    settle_tokens(method, keys, DEFAULTS, target, draft, notes)
    renew_keys(old, keys, keys["num_speculative_tokens"], notes)
    settle_rule(keys, notes)
    settle_details(method, keys, notes)
    check_against(method, keys, target, draft, notes)
    name_unused(method, keys, KEYS, notes)
    vllm_quirks(method, keys, as_of, notes)
    config = validated(SpeculativeConfig, keys)
    name_served(config, notes)
    config._notes = tuple(notes.lines)
    if method == "dspark" and draft is not None:
        # The speculators format leaves the anchor's row out unless it says otherwise.
        config._masked_rows_only = not draft.raw.get("sample_from_anchor", "speculators_model_type" not in draft.raw)
    if method == "mtp":
        config._modules = mtp_depth(target, draft)
    return _serialisable(config)


def _serialisable(config: SpeculativeConfig) -> SpeculativeConfig:
    """Free-form objects may hold anything; what JSON cannot say is refused here, not when somebody saves it."""
    for name in ("draft_load_config", "draft_model_config"):
        try:
            json.dumps(getattr(config, name), allow_nan=False)
        except (TypeError, ValueError, RecursionError):
            raise ConfigError(f"speculative_config.{name} holds something that JSON cannot say; remove it.") from None
    return config


def clean_names(given: Mapping[str, Any], as_of: str | None, notes: Notes) -> dict[str, Any]:
    """Dashes become underscores, as in vLLM; a name nobody knows gets a hint."""
    if not isinstance(given, Mapping):
        raise ConfigError(f"speculative_config must be a dictionary such as {EXAMPLE}, got {type(given).__name__}.")
    keys: dict[str, Any] = {}
    for written, value in given.items():
        name = str(written).replace("-", "_")
        if name in keys:
            raise ConfigError(f"speculative_config.{name} is given twice, with a dash and an underscore; keep one.")
        if name not in KEYS and name != "tensor_parallel_size" and name not in FILLED_IN:
            if as_of is not None and forgives(as_of):
                notes.add("vllm", name, f"vLLM {as_of} does not know it and drops it without a word.")
                continue
            label = name if name.isidentifier() and len(name) < 80 else shown(written)
            raise ConfigError(f"speculative_config.{label} is unknown; {_hint(name)}")
        keys[name] = value
    return keys


def _hint(name: str) -> str:
    if name in ELSEWHERE:
        return f"it is {ELSEWHERE[name]}, not part of speculation; move it there."
    close = COMMON_SLIPS.get(name.lower()) or next(iter(get_close_matches(name, KEYS, n=1, cutoff=0.6)), None)
    return f"did you mean {close!r}?" if close else "remove it (`augury config keys` lists what there is)."
