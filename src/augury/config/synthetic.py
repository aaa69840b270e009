"""Rates for synthetic acceptance: benchmarks that want a given acceptance whatever the drafter guesses."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from augury.config.errors import ConfigError


def rates_for_length(length: float, tokens: int) -> list[float]:
    """The schedule of least variance whose mean length is `length`: ones, one fraction, zeros."""
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
    """One rate a position, within [0, 1], never rising."""
    name = f"speculative_config.synthetic_acceptance_rates={list(rates)}"
    if len(rates) != tokens:
        raise ConfigError(f"{name} has length {len(rates)}; give num_speculative_tokens={tokens} of them.")
    if not all(0 <= rate <= 1 for rate in rates):
        raise ConfigError(f"{name} must lie in [0, 1]; they are shares of drafts, not percentages.")
    if any(later > earlier for earlier, later in pairwise(rates)):
        raise ConfigError(f"{name} must be non-increasing: a position counts only if those before it were accepted.")
