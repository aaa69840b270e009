"""Published acceptance, for targets and traffic that nobody has measured yet."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, model_validator

from augury.methods.registry import METHODS
from augury.tools.advise.accept import Rated, from_lengths

# A head trained on chat that meets code or agents: lengths of 3 at K=3 were seen to fall to 2, so much a place.
OUT_OF_DOMAIN = 0.67


class Published(BaseModel):
    """One published figure."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    method: str
    targets: tuple[str, ...]
    kind: Literal["chat", "code", "agent", "unknown"]
    tokens: int = Field(ge=1)
    length: tuple[float, float, float]
    conditions: str
    source: str

    @model_validator(mode="after")
    def _ordered(self) -> Published:
        low, middle, high = self.length
        if not 1 <= low <= middle <= high <= self.tokens + 1:
            raise ValueError("length must rise from 1 on and stay within K + 1")
        return self

    def acceptance(self, kind: str) -> tuple[Rated, str]:
        """Rates up to the published K, and what was assumed of the traffic."""
        low, middle, high = self.length
        strange = METHODS[self.method].has_weights and self.kind == "chat" and kind in ("code", "agent")
        rates = from_lengths(low, middle, high, self.tokens, OUT_OF_DOMAIN if strange else 1.0)
        note = (
            f"a chat-trained drafter on {kind} traffic: rates cut by up to {1 - OUT_OF_DOMAIN:.0%}" if strange else ""
        )
        return rates, note


@cache
def published() -> tuple[Published, ...]:
    """All of them, in the file's order."""
    written = yaml.safe_load((Path(__file__).parent / "published.yaml").read_text(encoding="utf-8"))
    return tuple(Published(**one) for one in written)


def find_published(method: str, target_type: str, kind: str) -> Published | None:
    """The figure nearest to a target and its traffic: its family before any, its kind before another."""
    look_up = METHODS[method].look_up
    method = (look_up.twin_of if look_up else "") or method
    fitting = [p for p in published() if p.method == method and _fits(p, target_type)]
    return min(fitting, key=lambda p: (not p.targets, p.kind != kind, p.kind != "unknown"), default=None)


def _fits(one: Published, target_type: str) -> bool:
    return not one.targets or any(part in target_type for part in one.targets)
