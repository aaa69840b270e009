"""The acceptance rule, inferred from its parameters where it is not named."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from augury.config.errors import ConfigError
from augury.methods.notes import Note
from augury.methods.spec import Case, Change

BLOCK_NEEDS = 3  # tokens; with fewer vllm-ascend verifies one by one


def settle_rule(case: Case) -> Change:
    """Settle the acceptance rule and, if it is synthetic, its rates."""
    keys, notes = case.keys, []
    sampler, rule = keys.get("rejection_sampler_config"), keys.get("rejection_sample_method")
    off = sampler is not None and not (sampler.enable_block_verify or sampler.enable_entropy_verify)
    if off and rule not in ("entropy", "ascend_block"):
        notes.append(Note("unused", "rejection_sampler_config", "neither of its two switches is on."))
    _check_synthetic(keys)
    for wanted, because in _meant(keys):
        if rule is None:
            notes.append(Note("inferred", "rejection_sample_method", f"{wanted!r}, because {because} is given."))
            rule = wanted
        if rule != wanted:
            raise ConfigError(
                f"speculative_config.{because} is only valid with rejection_sample_method={wanted!r}, not {rule!r}; "
                "remove one of them."
            )
    rates = _rates(keys) if rule == "synthetic" else Change()
    if rule == "ascend_block" and keys["num_speculative_tokens"] < BLOCK_NEEDS:
        says = f"a block needs {BLOCK_NEEDS} tokens; fewer are verified one by one."
        notes.append(Note("warning", "rejection_sample_method", says))
    return Change({"rejection_sample_method": rule, **rates.keys}, (*notes, *rates.notes))


def _meant(keys: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the rule that each given parameter belongs to, with the parameter's name."""
    for name in ("posterior_threshold", "posterior_alpha"):
        if keys.get(name) is not None:
            yield "typical", name
    sampler = keys.get("rejection_sampler_config")
    if sampler is not None and sampler.enable_block_verify:
        yield "ascend_block", "rejection_sampler_config.enable_block_verify"
    elif sampler is not None and sampler.enable_entropy_verify:
        yield "entropy", "rejection_sampler_config.enable_entropy_verify"


def _check_synthetic(keys: Mapping[str, Any]) -> None:
    """Refuse the synthetic rule's parameters without its name: vLLM does not infer this rule from them."""
    for name in ("synthetic_acceptance_rates", "synthetic_acceptance_length"):
        if keys.get(name) is not None and keys.get("rejection_sample_method") != "synthetic":
            raise ConfigError(
                f"speculative_config.{name} is only valid with rejection_sample_method='synthetic'; add that."
            )


def _rates(keys: Mapping[str, Any]) -> Change:
    rates, length = keys.get("synthetic_acceptance_rates"), keys.get("synthetic_acceptance_length")
    tokens = keys["num_speculative_tokens"]
    if (rates is None) == (length is None):
        raise ConfigError(
            "speculative_config.rejection_sample_method='synthetic' needs exactly one of synthetic_acceptance_rates "
            f"and synthetic_acceptance_length; {'neither is' if rates is None else 'both are'} given."
        )
    if rates is not None:
        check_rates(rates, tokens)
        return Change()
    assert length is not None
    rates = rates_for_length(length, tokens)
    check_rates(rates, tokens)
    says = Note("inferred", "synthetic_acceptance_rates", f"{rates}, for that acceptance length.")
    return Change({"synthetic_acceptance_rates": rates, "synthetic_acceptance_length": None}, (says,))


def rates_for_length(length: float, tokens: int) -> list[float]:
    """The rates of least variance whose mean acceptance length is `length`: ones, one fraction, zeros."""
    if not 1 <= length <= tokens + 1:
        raise ConfigError(
            f"speculative_config.synthetic_acceptance_length={length} must lie in [1, {tokens + 1}] "
            f"(1 to num_speculative_tokens + 1)."
        )
    whole = int(length - 1)
    rates = [1.0] * whole + [0.0] * (tokens - whole)
    if whole < tokens:
        rates[whole] = length - 1 - whole
    return rates


def check_rates(rates: Sequence[float], tokens: int) -> None:
    """Require one rate per position, within [0, 1] and never rising."""
    name = f"speculative_config.synthetic_acceptance_rates={list(rates)}"
    if len(rates) != tokens:
        raise ConfigError(f"{name} has length {len(rates)}; give num_speculative_tokens={tokens} of them.")
    if not all(0 <= rate <= 1 for rate in rates):
        raise ConfigError(f"{name} must lie in [0, 1]; they are shares of drafts, not percentages.")
    if any(later > earlier for earlier, later in pairwise(rates)):
        raise ConfigError(f"{name} must be non-increasing: a position counts only if those before it were accepted.")
