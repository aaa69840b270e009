"""Which method a configuration means: the user's word first, then the checkpoint's own config, then its name.

vLLM looks at the name first and lets it override an explicit method; `vllm_choice` is that rule, so that we can say
where the two differ.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from augury.config.facts import architectures
from augury.methods.mtp import family_of
from augury.methods.registry import ALIASES, METHODS

DSPARK_ARCHITECTURES = ("Qwen3DSparkModel", "Qwen3OmniDSparkModel", "Gemma4DSparkModel")
SPECULATORS = {
    "eagle": "eagle", "eagle3": "eagle3", "peagle": "eagle3", "dflash": "dflash", "dflash2": "dflash",
    "dspark": "dspark", "mlp_speculator": "mlp_speculator",
}  # fmt: skip
NAME_RULES = (("eagle-", "eagle"), ("eagle3", "eagle3"), ("dflash", "dflash"), ("dspark", "dspark"))


class Choice(NamedTuple):
    """A method, and what it was told from."""

    method: str
    why: str


def is_import_path(model: str) -> bool:
    """Whether a text reads like package.module.Class."""
    return "/" not in model and re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)+", model) is not None


def choose(method: str, model: str | None, draft: Mapping[str, Any]) -> Choice | None:
    """Our rule; None when neither method nor model says anything."""
    if method:
        return Choice(ALIASES.get(method, method), "you named it")
    if model is None:
        return None
    if model in ("ngram", "[ngram]"):
        return Choice("ngram", f"model is {model!r}")
    if draft:
        return recognise(draft) or _by_name(model) or Choice("draft_model", "it is an ordinary language model")
    if is_import_path(model) and not model.endswith(".gguf"):
        return Choice("custom_class", f"model={model!r} is an import path")
    return _by_name(model) or Choice("draft_model", "nothing in the name says otherwise")


def recognise(draft: Mapping[str, Any]) -> Choice | None:
    """What a drafter's config.json says it is; None for an ordinary language model."""
    for field in ("speculators_model_type", "model_type"):
        kind = str(draft.get(field, ""))
        known = SPECULATORS.get(kind) or ("medusa" if kind == "medusa" else None) or ALIASES.get(kind)
        if known:
            return Choice(known, f"the checkpoint's {field} is {kind!r}")
    for name in architectures(draft):
        for part, method in (
            ("Eagle3", "eagle3"), ("Peagle", "eagle3"), ("PEagle", "eagle3"), ("Eagle", "eagle"), ("DFlash", "dflash"),
            ("LiLiCorr", "dflash"), ("MuseGlimmerAssistant", "dflash"), ("DSpark", "dspark"), ("Medusa", "medusa"),
            ("MLPSpeculator", "mlp_speculator"),
        ):  # fmt: skip
            if part in name:
                return Choice(method, f"the checkpoint's architecture is {name}")
    for field, method in (
        ("medusa_num_heads", "medusa"), ("dflash_config", "dflash"), ("draft_vocab_size", "eagle3"),
        ("eagle_aux_hidden_state_layer_ids", "eagle3"),
    ):  # fmt: skip
        if draft.get(field) is not None:
            return Choice(method, f"the checkpoint's config has {field}")
    return None


def _by_name(model: str) -> Choice | None:
    name = model.rstrip("/").rpartition("/")[2].lower()  # the directories above it say nothing of the model
    for part, method in NAME_RULES:
        if part in name:
            return Choice(method, f"{part!r} stands in the model's name")
    return None


def vllm_choice(method: str, model: str | None, draft: Mapping[str, Any]) -> str | None:
    """The method vLLM 0.32 arrives at; None where it gives up with "Unsupported speculative method"."""
    if not method:
        if model is not None and is_import_path(model):
            return "custom_class"
        method = "ngram" if model in ("ngram", "[ngram]") else "draft_model"
    method = ALIASES.get(method, method)
    final = ("eagle", "eagle3", "dflash", "dspark")
    if METHODS[method].weights in ("none", "import path") or method in final:
        return method
    return _vllm_detection(method, (model or "").lower(), draft)


def _vllm_detection(method: str, name: str, draft: Mapping[str, Any]) -> str | None:
    kind, classes = str(draft.get("model_type", "")), architectures(draft)
    is_dspark = any(a in DSPARK_ARCHITECTURES for a in classes) or ("DSparkDraftModel" in classes and kind == "qwen3")
    rules = (
        ("eagle-" in name, "eagle"),
        ("eagle3" in name, "eagle3"),
        ("dflash" in name or "MuseGlimmerAssistantModel" in classes, "dflash"),
        ("dspark" in name or is_dspark, "dspark"),
        (kind == "medusa" or method == "medusa", "medusa"),  # vLLM writes that model_type in for method medusa
        (kind == "mlp_speculator", "mlp_speculator"),
        (family_of(draft) is not None or kind in ALIASES, "mtp"),
        (method == "draft_model", "draft_model"),
    )
    return next((found for matches, found in rules if matches), None)
