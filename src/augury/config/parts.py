"""A configuration of several drafters: each is resolved by itself, then all are compared with each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from augury.config.errors import ConfigError
from augury.config.speculative import SpeculativeConfig
from augury.methods.notes import Note

OF_ALL = (  # keys of the engine, the same for every drafter
    "rejection_sample_method",
    "synthetic_acceptance_rates",
    "synthetic_acceptance_length",
    "rejection_sampler_config",
    "posterior_threshold",
    "posterior_alpha",
    "num_speculative_tokens_per_batch_size",
    "adaptive",
    "plain_pass_every",
)
Resolve = Callable[[Mapping[str, Any]], SpeculativeConfig | None]


def resolve_parts(keys: Mapping[str, Any], resolve: Resolve) -> tuple[SpeculativeConfig, ...]:
    """Resolve the drafters of a configuration that lists several; empty for any other."""
    listed, found = keys.get("drafters"), []
    for number, written in enumerate(listed or ()):
        where = f"speculative_config.drafters[{number}]"
        for name in OF_ALL:
            if written.get(name) is not None:
                raise ConfigError(f"{where}.{name} holds for all drafters; write it beside `drafters`.")
        if written.get("num_speculative_tokens") == "auto":
            raise ConfigError(f"{where}.num_speculative_tokens='auto' holds for all drafters; write it beside them.")
        usual = {name: keys[name] for name in ("num_speculative_tokens", "adaptive") if name in keys}
        try:
            part = resolve({**usual, **written})
        except ConfigError as error:
            raise ConfigError(_placed(str(error), where)) from None
        assert part is not None
        found.append(part)
        _check_part(part, where, listed or ())
    if listed is not None:
        _check_all(found)
    return tuple(found)


def _placed(message: str, where: str) -> str:
    """An error about one drafter, with its place in the list."""
    name = "speculative_config"
    return where + message.removeprefix(name) if message.startswith(name) else f"{where}: {message}"


def _check_part(part: SpeculativeConfig, where: str, listed: Any) -> None:
    card = part.card
    if card.look_up is not None and card.look_up.twin_of:
        raise ConfigError(f"{where}.method={part.method!r} runs on the device alone; write {card.look_up.twin_of!r}.")
    if card.look_up is None and not card.has_weights:
        raise ConfigError(f"{where}.method={part.method!r} does not work together with others; remove it.")
    if part.drafts_trees:
        raise ConfigError(f"{where}.tree: drafters together make chains; remove it.")


def _check_all(parts: list[SpeculativeConfig]) -> None:
    name, methods = "speculative_config.drafters", [part.method for part in parts]
    if len(parts) < 2:
        raise ConfigError(
            f"{name} needs at least two drafters and lists {len(parts)}; add one, or configure the one by itself."
        )
    twice = next((method for method in methods if methods.count(method) > 1), None)
    if twice is not None:
        raise ConfigError(f"{name} has {twice!r} twice; keep one.")
    models = [part.method for part in parts if part.card.has_weights]
    if len(models) > 1:
        raise ConfigError(f"{name} has {models[0]!r} and {models[1]!r}: at most one may be a model; remove one.")


def joined(config: SpeculativeConfig, parts: tuple[SpeculativeConfig, ...]) -> tuple[Note, ...]:
    """Check the whole against its parts, and collect their notes."""
    sampled = next((number for number, part in enumerate(parts) if part.samples_drafts), None)
    if sampled is not None and config.rejection_sample_method not in ("coupled", "synthetic"):
        raise ConfigError(
            f"speculative_config.rejection_sample_method={config.rejection_sample_method!r} asks what drafts were "
            f"drawn from, and look-ups draw from nothing; remove drafters[{sampled}].draft_sample_method, or the rule."
        )
    return tuple(
        note._replace(key=f"drafters[{number}].{note.key}") for number, part in enumerate(parts) for note in part.notes
    )
