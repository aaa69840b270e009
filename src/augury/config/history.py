"""Keys and values that vLLM has dropped: they still work here, in today's words, and a note says so."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from augury.config.errors import ConfigError
from augury.config.keys import key
from augury.config.notes import Notes

NOTHING = "nothing: it has no meaning any more"


class DroppedKeys(BaseModel):
    """What older documents still show."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    disable_by_batch_size: int | None = key(
        None, "Do not speculate when more requests than this are running.", until="0.17", ge=2,
        instead="num_speculative_tokens_per_batch_size with a range of K=0",
    )  # fmt: skip
    synthetic_acceptance_rate: float | None = key(
        None, "For synthetic: the share of drafted tokens to accept.", since="0.19", until="0.20", ge=0, le=1,
        instead="synthetic_acceptance_rates or synthetic_acceptance_length",
    )  # fmt: skip
    acceptance_method: Literal["rejection_sampler", "typical_acceptance_sampler"] | None = key(
        None, "The acceptance rule of the first engine.", until="0.10", instead="rejection_sample_method"
    )
    typical_acceptance_sampler_posterior_threshold: float | None = key(
        None, "For typical acceptance: upper bound of the threshold.", until="0.8.3", gt=0, le=1,
        instead="posterior_threshold (Augury) or nothing (vLLM)",
    )  # fmt: skip
    typical_acceptance_sampler_posterior_alpha: float | None = key(
        None, "For typical acceptance: how strongly entropy lowers the threshold.", until="0.8.3", ge=0,
        instead="posterior_alpha (Augury) or nothing (vLLM)",
    )  # fmt: skip
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
        "rejection_sample_method": "standard", "draft_sample_method": "probabilistic",
    },
    ("draft_sample_method", "gumbel"): {"draft_sample_method": "probabilistic"},
}  # fmt: skip

FILLED_IN = ("target_model_config", "target_parallel_config", "draft_parallel_config")


def refuse_traps(keys: dict[str, Any]) -> None:
    """Keys that look right and never were the user's to set."""
    if keys.get("tensor_parallel_size") is not None:
        raise ConfigError(
            f"speculative_config.tensor_parallel_size={keys['tensor_parallel_size']!r} is not a key of the drafter; "
            "write draft_tensor_parallel_size."
        )
    keys.pop("tensor_parallel_size", None)
    for name in FILLED_IN:
        if keys.pop(name, None) is not None:
            raise ConfigError(f"speculative_config.{name} is filled in by the engine; remove it.")


def renew_values(keys: dict[str, Any], notes: Notes) -> None:
    """Old words for values, in place."""
    for (name, old), new in OLD_VALUES.items():
        if keys.get(name) != old:
            continue
        for other, value in new.items():
            if other != name and keys.get(other) not in (None, value):
                raise ConfigError(
                    f"speculative_config.{name}={old!r} means {other}={value!r} today, but {other}={keys[other]!r} is "
                    f"given too; write {name}={new[name]!r} and keep the other."
                )
        keys.update(new)
        today = ", ".join(f"{other}={value!r}" for other, value in new.items())
        notes.add("translated", name, f"{old!r} is an old word; taken as {today}.", refused=True)


def renew_keys(old: DroppedKeys, keys: dict[str, Any], tokens: int, notes: Notes) -> None:
    """Old keys, in place, once K is known."""
    if old.disable_by_batch_size is not None:
        limit = old.disable_by_batch_size
        _replace(keys, "num_speculative_tokens_per_batch_size", [(1, limit, tokens), (limit + 1, limit + 1, 0)],
                 "disable_by_batch_size", notes)  # fmt: skip
    if old.synthetic_acceptance_rate is not None:
        if keys.get("rejection_sample_method") != "synthetic":
            raise ConfigError(
                "speculative_config.synthetic_acceptance_rate is only valid with rejection_sample_method='synthetic'; "
                "add that."
            )
        _replace(keys, "synthetic_acceptance_length", 1 + old.synthetic_acceptance_rate * tokens,
                 "synthetic_acceptance_rate", notes)  # fmt: skip
    if old.acceptance_method is not None:
        rule = "typical" if old.acceptance_method.startswith("typical") else "standard"
        _replace(keys, "rejection_sample_method", rule, "acceptance_method", notes)
    for part in ("threshold", "alpha"):
        name = f"typical_acceptance_sampler_posterior_{part}"
        if getattr(old, name) is not None:
            _replace(keys, f"posterior_{part}", getattr(old, name), name, notes)
    for name in ("disable_logprobs", "disable_mqa_scorer", "enable_chunked_prefill"):
        if getattr(old, name) is not None:
            notes.add("translated", name, "has no meaning any more and is left out.", refused=True)


def _replace(keys: dict[str, Any], name: str, value: Any, old: str, notes: Notes) -> None:
    if name in keys:
        raise ConfigError(f"speculative_config.{old} is the old way to write {name}, and both are given; remove {old}.")
    keys[name] = value
    notes.add("translated", old, f"was dropped by vLLM; taken as {name}={_shown(value)}.", refused=True)


def _shown(value: Any) -> str:
    return str([list(entry) for entry in value]) if isinstance(value, list) else repr(value)
