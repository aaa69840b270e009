"""Measured acceptance, by family of targets and kind of text, and a method card's figures for any target.

`augury advise` and `augury check` use the same figures, so that they cannot disagree.
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
        """The band that a server's acceptance is compared with."""
        return measured(*self.length, self.tokens, self.conditions, self.source, self.kind)


@cache
def figures() -> tuple[Figure, ...]:
    """The file's figures, in its order, then those of the method cards, which hold for any target."""
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
    """The closest figure to a target and its traffic: family matches come first, then matching kinds of text."""
    look_up = METHODS[method].look_up
    method = (look_up.twin_of if look_up else "") or method
    fitting = [one for one in figures() if one.method == method and _fits(one, target_type)]
    return min(fitting, key=lambda one: (not one.targets, one.kind != kind, one.kind != "unknown"), default=None)


def _fits(one: Figure, target_type: str) -> bool:
    return not one.targets or any(part in target_type for part in one.targets)


def healthy(method: str, target: str, tokens: float | None) -> Band | None:
    """The band of a healthy server by its method, K and model name, or None; a look-up's covers any kind of text.

    A model_type counts as a name. A name must contain the family as a word, since a short part such as vl is in many.
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
