"""Keys and values that vLLM has dropped: they still work here, translated to today's, and a note says so."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from augury.config.errors import ConfigError
from augury.config.keys import key
from augury.methods.notes import Note
from augury.methods.spec import Case, Change

NOTHING = "nothing: it has no meaning any more"


class DroppedKeys(BaseModel):
    """Keys that older documents still show."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, defer_build=True)

    disable_by_batch_size: int | None = key(
        None,
        "Do not speculate when more requests than this are running.",
        until="0.17",
        ge=2,
        instead="num_speculative_tokens_per_batch_size with a range of K=0",
    )
    synthetic_acceptance_rate: float | None = key(
        None,
        "For synthetic: the share of drafted tokens to accept.",
        since="0.19",
        until="0.20",
        ge=0,
        le=1,
        instead="synthetic_acceptance_rates or synthetic_acceptance_length",
    )
    acceptance_method: Literal["rejection_sampler", "typical_acceptance_sampler"] | None = key(
        None, "The acceptance rule of the first engine.", until="0.10", instead="rejection_sample_method"
    )
    typical_acceptance_sampler_posterior_threshold: float | None = key(
        None,
        "For typical acceptance: upper bound of the threshold.",
        until="0.8.3",
        gt=0,
        le=1,
        instead="posterior_threshold (Augury) or nothing (vLLM)",
    )
    typical_acceptance_sampler_posterior_alpha: float | None = key(
        None,
        "For typical acceptance: how strongly entropy lowers the threshold.",
        until="0.8.3",
        ge=0,
        instead="posterior_alpha (Augury) or nothing (vLLM)",
    )
    disable_logprobs: bool | None = key(
        None, "Leave log-probabilities out while speculating.", until="0.11.1", instead=NOTHING
    )
    disable_mqa_scorer: bool | None = key(None, "Score drafts as separate sequences.", until="0.10", instead=NOTHING)
    enable_chunked_prefill: bool | None = key(
        None, "Whether the target reads prompts in chunks.", until="0.11.1", instead="the engine's own argument"
    )


OLD_VALUES = {
    ("rejection_sample_method", "strict"): {"rejection_sample_method": "standard", "draft_sample_method": "greedy"},
    ("rejection_sample_method", "probabilistic"): {
        "rejection_sample_method": "standard",
        "draft_sample_method": "probabilistic",
    },
    ("draft_sample_method", "gumbel"): {"draft_sample_method": "probabilistic"},
}

FILLED_IN = ("tensor_parallel_size", "target_model_config", "target_parallel_config", "draft_parallel_config")


def refuse_traps(keys: Mapping[str, Any]) -> None:
    """Refuse keys that look right but were never for the user to set."""
    if keys.get("tensor_parallel_size") is not None:
        raise ConfigError(
            f"speculative_config.tensor_parallel_size={keys['tensor_parallel_size']!r} is not a key of the drafter; "
            "write draft_tensor_parallel_size."
        )
    for name in FILLED_IN:
        if keys.get(name) is not None:
            raise ConfigError(f"speculative_config.{name} is filled in by the engine; remove it.")


def renew_values(keys: dict[str, Any]) -> tuple[dict[str, Any], tuple[Note, ...]]:
    """Replace old values with today's; returns the keys, with a note for each replacement."""
    notes: tuple[Note, ...] = ()
    for (name, old), new in OLD_VALUES.items():
        if keys.get(name) != old:
            continue
        for other, value in new.items():
            if other != name and keys.get(other) not in (None, value):
                raise ConfigError(
                    f"speculative_config.{name}={old!r} means {other}={value!r} today, but {other}={keys[other]!r} is "
                    f"given too; write {name}={new[name]!r} and keep the other."
                )
        keys = {**keys, **new}
        today = ", ".join(f"{other}={value!r}" for other, value in new.items())
        notes += (Note("translated", name, f"{old!r} is an old name; taken as {today}.", refused=True),)
    return keys, notes


def renew_keys(old: DroppedKeys, case: Case) -> Change:
    """Translate dropped keys to today's, once K is known."""
    keys = dict(_renewed(old, case))
    notes = [
        Note("translated", name, f"was dropped by vLLM; taken as {new}={_shown(value)}.", refused=True)
        for new, (name, value) in keys.items()
    ]
    for new, (name, _) in keys.items():
        if new in case.keys:
            raise ConfigError(
                f"speculative_config.{name} is the old way to write {new}, and both are given; remove {name}."
            )
    for name in ("disable_logprobs", "disable_mqa_scorer", "enable_chunked_prefill"):
        if getattr(old, name) is not None:
            notes.append(Note("translated", name, "has no meaning any more and is left out.", refused=True))
    return Change({new: value for new, (_, value) in keys.items()}, tuple(notes))


def _renewed(old: DroppedKeys, case: Case) -> Iterator[tuple[str, tuple[str, Any]]]:
    """Yield today's key, with the old key and today's value."""
    tokens = case.keys["num_speculative_tokens"]
    if old.disable_by_batch_size is not None:
        limit = old.disable_by_batch_size
        table = [(1, limit, tokens), (limit + 1, limit + 1, 0)]
        yield "num_speculative_tokens_per_batch_size", ("disable_by_batch_size", table)
    if old.synthetic_acceptance_rate is not None:
        if case.keys.get("rejection_sample_method") != "synthetic":
            raise ConfigError(
                "speculative_config.synthetic_acceptance_rate is only valid with rejection_sample_method='synthetic'; "
                "add that."
            )
        length = 1 + old.synthetic_acceptance_rate * tokens
        yield "synthetic_acceptance_length", ("synthetic_acceptance_rate", length)
    if old.acceptance_method is not None:
        rule = "typical" if old.acceptance_method.startswith("typical") else "standard"
        yield "rejection_sample_method", ("acceptance_method", rule)
    for part in ("threshold", "alpha"):
        name = f"typical_acceptance_sampler_posterior_{part}"
        if getattr(old, name) is not None:
            yield f"posterior_{part}", (name, getattr(old, name))


def _shown(value: Any) -> str:
    return str([list(entry) for entry in value]) if isinstance(value, list) else repr(value)
