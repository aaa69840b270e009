"""What a server's figures are compared with: its method's band at its K."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from augury.config.errors import ConfigError
from augury.methods.bands import FAULT, Band
from augury.methods.registry import ALIASES, METHODS
from augury.tools.knowledge.acceptance import healthy
from augury.tools.live.window import Window

YOURS = "as you asked"
ROUNDING = 0.05  # tokens per draft: the last drafts of an answer are shorter
SHORT = 2.0  # tokens per step; fewer count as short drafts, unless the method's own band begins lower


@dataclass(frozen=True, slots=True)
class Expectation:
    """A method, its K, and its bands."""

    method: str | None = None
    named_by: str = ""
    k: int | None = None
    rate: tuple[float, float] | None = None
    length: tuple[float, float] | None = None
    where: str = ""
    told: tuple[str, str] | None = None  # what the server shows, and the contradicting claim

    @property
    def length_floor(self) -> float:
        """The acceptance length below which drafts count as short."""
        most = 1 + (self.k or 63)
        return min(SHORT, self.length[0] if self.length else SHORT, (1 + most) / 2)

    @property
    def fault_rate(self) -> float | None:
        """The acceptance rate below which a drafter with weights must have a fault; None without a band."""
        return FAULT * self.rate[0] if self.rate else None

    def record(self) -> dict[str, Any]:
        """The expectation as JSON."""
        return {
            "method": self.method,
            "named_by": self.named_by,
            "k": self.k,
            "rate": self.rate,
            "length": self.length,
            "where": self.where,
            "differs": self.told,
        }


def known_method(name: str, option: str = "--method") -> str:
    """A method's current name, given that or a retired one; a ConfigError if unknown."""
    found = ALIASES.get(name, name)
    if found not in METHODS:
        raise ConfigError(f"{option} {name!r} is unknown; there are {', '.join(METHODS)}.")
    return found


def band(text: str) -> tuple[float, float]:
    """Parse a band of rates written as two shares with a comma."""
    try:
        low, high = (float(part) for part in text.split(","))
    except ValueError:
        low, high = 1.0, 0.0
    if not 0 <= low <= high <= 1:
        raise ConfigError(f"--band {text!r}: write two shares with a comma, for example 0.75,0.92.")
    return low, high


def expect(
    window: Window, method: str | None, k: int | None, rate: tuple[float, float] | None, config: Mapping[str, Any]
) -> Expectation:
    """The method, K and bands to expect; the server itself is believed first, then the user, then the configuration."""
    named = ((window.after.method, "the server"), (method, "--method"), (config.get("method"), "the configuration"))
    name, by = next(((name, by) for name, by in named if name in METHODS), (None, ""))
    tokens = window.k or k or config.get("k")
    target = str(config.get("target_type") or window.after.model)
    card = healthy(name, target, drafted_at_a_time(window, tokens)) if name else None
    where = YOURS if rate else _where(card) if card else ""
    told = _otherwise(
        window,
        [
            ("--method", method),
            ("--k", k),
            ("the configuration", config.get("method")),
            ("the configuration", config.get("k")),
        ],
    )
    bands = rate or (card.rate if card else None), card.length if card else None
    return Expectation(name, by, tokens, *bands, where, told)


def _where(band: Band) -> str:
    return f"{band.where}, at K={band.tokens}" if band.tokens else band.where


def drafted_at_a_time(window: Window, tokens: int | None) -> float | None:
    """The effective K: the mean draft if a schedule or a look-up drafts less, which puts K's own band out of reach."""
    mean = window.drafting.per_draft
    if mean is None or not tokens:
        return mean or tokens
    return tokens if mean > tokens - ROUNDING else mean


def _otherwise(window: Window, said: Sequence[tuple[str, str | int | None]]) -> tuple[str, str] | None:
    """The first claim that contradicts the server, as (what it shows, the claim); None if all agree."""
    for who, word in said:
        shown = window.k if isinstance(word, int) else window.after.method
        if word is not None and shown is not None and word != shown:
            unit = "K=" if isinstance(word, int) else ""
            return f"{unit}{shown}", f"{unit}{word} ({who})"
    return None
