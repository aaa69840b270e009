"""A speculators-format checkpoint: a drafter that names its target, and may be given in the target's place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from augury.config.errors import ConfigError
from augury.config.facts import ModelFacts, read_facts
from augury.methods.recognise import SPECULATORS
from augury.methods.spec import Inferred, SpeculatorType, whole

LOCKED = ("method", "model")  # fixed by the checkpoint itself


class Swapped(NamedTuple):
    """The target a speculator was trained for, and how to speculate with it."""

    target: str
    speculative_config: dict[str, Any]


def is_speculator(facts: ModelFacts | None) -> bool:
    """Whether a checkpoint is in this format."""
    return facts is not None and ("speculators_model_type" in facts.raw or "speculators_config" in facts.raw)


def target_of(facts: ModelFacts) -> str | None:
    """The target that a speculator names."""
    inner = facts.raw.get("speculators_config")
    verifier = inner.get("verifier") if isinstance(inner, Mapping) else None
    target = verifier.get("name_or_path") if isinstance(verifier, Mapping) else None
    return target if isinstance(target, str) and target else None


def swap(model: str, given: Mapping[str, Any] | None) -> Swapped | None:
    """If `model` is a speculator, put its target in its place; the user's keys win except those it fixes itself."""
    facts = read_facts(model)
    if given is not None and not isinstance(given, Mapping):
        return None  # not a configuration at all; refused elsewhere
    if facts is None or not is_speculator(facts):
        return None
    kind = str(facts.raw.get("speculators_model_type", ""))
    if kind not in SPECULATORS:
        types = ", ".join(SPECULATORS)
        raise ConfigError(f"model={model!r} is a speculator of type {kind!r}, which is not known; known are {types}.")
    target = target_of(facts)
    if target is None:
        raise ConfigError(
            f"model={model!r} is a speculator without a target (speculators_config.verifier.name_or_path); "
            "give the target as the model and this as speculative_config.model."
        )
    card, known = SPECULATORS[kind]
    if known.nested and not isinstance(facts.raw.get("transformer_layer_config"), Mapping):
        raise ConfigError(
            f"model={model!r}: its config.json has no transformer_layer_config; the checkpoint is incomplete."
        )
    fixed: dict[str, Any] = {"method": card.name, "model": model}
    own = dict(given or {})
    for name in LOCKED:
        if own.pop(name, fixed[name]) != fixed[name]:
            raise ConfigError(
                f"speculative_config.{name} is fixed to {fixed[name]!r} by the speculator that is the model; remove it."
            )
    return Swapped(target, {**fixed, **said_itself(facts), **own})


def said_itself(facts: ModelFacts) -> dict[str, Any]:
    """The keys that such a checkpoint sets when it is given in the target's place."""
    _, known = SPECULATORS.get(str(facts.raw.get("speculators_model_type")), (None, SpeculatorType()))
    tokens = stated_tokens(facts)
    return {**known.fixes, **({"num_speculative_tokens": tokens[0]} if tokens else {})}


def stated_tokens(facts: ModelFacts | None) -> Inferred | None:
    """The K that such a checkpoint was made for."""
    inner = facts.raw.get("speculators_config") if facts else None
    methods = inner.get("proposal_methods") if isinstance(inner, Mapping) else None
    first = methods[0] if isinstance(methods, list) and methods else None
    tokens = whole(first.get("speculative_tokens")) if isinstance(first, Mapping) else None
    return (tokens, "the checkpoint's speculators_config") if tokens else None
