"""Acceptance that was measured: on a family of targets or a kind of text, and on anything, as the method's card says.

`augury advise` weighs with these figures and `augury check` holds a server against them, so that they cannot disagree.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict, Field, model_validator

from augury.methods.bands import Band, Kind, measured
from augury.methods.registry import METHODS

FILE = Path(__file__).parent / "acceptance.yaml"


class Figure(BaseModel):
    """One measured acceptance."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    method: str
    targets: tuple[str, ...]
    kind: Kind
    tokens: int = Field(ge=1)
    length: tuple[float, float, float]
    conditions: str
    source: str

    @model_validator(mode="after")
    def _ordered(self) -> Figure:
        low, middle, high = self.length
        if not 1 <= low <= middle <= high <= self.tokens + 1:
            raise ValueError("length must rise from 1 on and stay within K + 1")
        return self

    @property
    def band(self) -> Band:
        """What a server is compared with."""
        return measured(*self.length, self.tokens, self.conditions, self.source, self.kind)


@cache
def figures() -> tuple[Figure, ...]:
    """Those of the file, in its order, then those of the cards, which hold for any target."""
    written = tuple(Figure(**one) for one in yaml.safe_load(FILE.read_text(encoding="utf-8")))
    return written + tuple(_of_card(name, card.band) for name, card in METHODS.items() if card.band and card.band.usual)


def _of_card(method: str, band: Band) -> Figure:
    assert band.length is not None and band.usual is not None and band.tokens is not None
    length = band.length[0], band.usual, band.length[1]
    return Figure(
        method=method,
        targets=(),
        kind=band.kind,
        tokens=band.tokens,
        length=length,
        conditions=band.where,
        source=band.source,
    )


def nearest(method: str, target_type: str, kind: str) -> Figure | None:
    """The figure nearest to a target and its traffic: its family before any, its kind before another."""
    look_up = METHODS[method].look_up
    method = (look_up.twin_of if look_up else "") or method
    fitting = [one for one in figures() if one.method == method and _fits(one, target_type)]
    return min(fitting, key=lambda one: (not one.targets, one.kind != kind, one.kind != "unknown"), default=None)


def _fits(one: Figure, target_type: str) -> bool:
    return not one.targets or any(part in target_type for part in one.targets)


def healthy(method: str, target: str, tokens: float | None) -> Band | None:
    """Where a healthy server lies, by its method, K, and what its model is called; of a look-up, whatever the text.

    A model_type is a name too. A name must hold the family as a word, since a short part such as vl is in many.
    """
    if method not in METHODS:
        return None
    words = re.split(r"[^a-z]+", target.lower())
    plain = re.sub(r"[^a-z0-9]", "_", target.lower())
    of_family = [
        one
        for one in figures()
        if one.method == method and any(part in words or ("_" in part and part in plain) for part in one.targets)
    ]
    band = of_family[0].band if of_family else METHODS[method].band
    return band.at(tokens) if band else None
