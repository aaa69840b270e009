"""Which method a configuration means: the one the user names, else by the checkpoint's own config, else by its name.

vLLM looks at the name first and lets it override an explicit method; `vllm_choice` is that rule, so that we can say
where the two differ.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from augury.methods.custom_class import CUSTOM_CLASS
from augury.methods.eagle3 import EAGLE3
from augury.methods.facts import ModelFacts, TargetInfo, architectures
from augury.methods.registry import ALIASES, METHODS, ORDINARY
from augury.methods.spec import Method, SpeculatorType

KINDS = {kind: card for card in METHODS.values() for kind in card.kinds}
SPECULATORS: dict[str, tuple[Method, SpeculatorType]] = {
    kind: (card, one) for card in METHODS.values() for kind, one in card.signs.speculators.items()
}
USUAL_SPECULATOR = EAGLE3  # what a speculators checkpoint is most often, where its type cannot be read
NEWEST_FIRST = tuple(reversed(METHODS.values()))  # a newer family's checkpoints keep the marks of older ones


class Recognised(NamedTuple):
    """A method, and what it was inferred from."""

    method: str
    why: str


def is_import_path(model: str) -> bool:
    """Whether a text reads like package.module.Class."""
    return "/" not in model and re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)+", model) is not None


def stands_for(model: str | None) -> Method | None:
    """The method meant by a word in place of a model, if any."""
    return next((card for card in METHODS.values() if model in card.signs.stand_ins), None)


def choose(
    method: str, model: str | None, draft: Mapping[str, Any], target: TargetInfo = TargetInfo()
) -> Recognised | None:
    """Our rule; None when neither method nor model says anything."""
    if method:
        return Recognised(ALIASES.get(method, method), "you named it")
    if model is None:
        return None
    if meant := stands_for(model):
        return Recognised(meant.name, f"model is {model!r}")
    last = model.rstrip("/").rpartition("/")[2]  # the directories above it say nothing of the model
    if draft:
        found = recognise(draft, target) or by_name(last)
        return found or Recognised(ORDINARY.name, "it is an ordinary language model")
    if is_import_path(model) and not model.endswith(".gguf"):
        return Recognised(CUSTOM_CLASS.name, f"model={model!r} is an import path")
    return by_name(last) or Recognised(ORDINARY.name, "nothing in the name says otherwise")


def recognise(draft: Mapping[str, Any], target: TargetInfo = TargetInfo()) -> Recognised | None:
    """What a drafter's config.json says it is; None for an ordinary language model."""
    for field in ("speculators_model_type", "model_type"):
        kind = str(draft.get(field, ""))
        if kind in KINDS:
            return Recognised(KINDS[kind].name, f"the checkpoint's {field} is {kind!r}")
    for name in architectures(draft):
        for card in NEWEST_FIRST:
            if any(part in name for part in card.signs.architectures):
                return Recognised(card.name, f"the checkpoint's architecture is {name}")
    for card in NEWEST_FIRST:
        for field in card.signs.fields:
            if draft.get(field) is not None:
                return Recognised(card.name, f"the checkpoint's config has {field}")
    for card in NEWEST_FIRST:
        if why := card.tells(ModelFacts("", draft), target):
            return Recognised(card.name, why)
    return None


def by_name(model: str | None) -> Recognised | None:
    """What a name says, by the parts vLLM looks for."""
    for card in METHODS.values():
        for part in card.signs.names:
            if part in (model or "").lower():
                return Recognised(card.name, f"{part!r} is in the model's name")
    return None


def vllm_choice(
    method: str, model: str | None, draft: Mapping[str, Any], known: Callable[[Method], bool] = lambda card: True
) -> str | None:
    """The method vLLM 0.32 arrives at; None where it gives up with "Unsupported speculative method".

    `known` leaves out methods that an earlier release could not arrive at.
    """
    if not method:
        if model is not None and is_import_path(model):
            return CUSTOM_CLASS.name
        method = (stands_for(model) or ORDINARY).name
    asked = METHODS[ALIASES.get(method, method)]
    if not asked.has_weights or asked.signs.names:
        return asked.name
    cards = [card for card in METHODS.values() if known(card)]
    return _vllm_detection(asked, (model or "").lower(), {**draft, **asked.vllm_writes}, cards)


def _vllm_detection(asked: Method, name: str, draft: Mapping[str, Any], cards: list[Method]) -> str | None:
    named = [card for card in cards if card.signs.names]
    rest = [card for card in cards if not card.signs.names]
    for card in named:
        if any(part in name for part in card.signs.names) or card.vllm_detects(draft):
            return card.name
    kind = KINDS.get(str(draft.get("model_type", "")))
    found = kind if kind in rest else next((card for card in rest if card.vllm_detects(draft)), None)
    return found.name if found else ORDINARY.name if asked is ORDINARY else None


def vllm_view(
    method: str,
    card: Method,
    model: str | None,
    target: TargetInfo,
    draft: ModelFacts | None,
    known: Callable[[Method], bool] = lambda card: True,
) -> str | None:
    """What vLLM takes a configuration for; empty where the files that it would look at are not here."""
    inside = model is None and card.weights == "target"
    told_by_files = bool(card.kinds) and not card.signs.names
    if (inside and target.facts is None) or (draft is None and model is not None and told_by_files):
        return ""
    if inside:
        return vllm_choice(method, target.name, target.raw, known)
    return vllm_choice(method, model, draft.raw if draft else {}, known)
