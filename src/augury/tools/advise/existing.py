"""Whether anybody has published a drafter for a target, from existing.yaml."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict

from augury.config.facts import ModelFacts
from augury.methods.registry import METHODS


class Existing(BaseModel):
    """Drafters for targets of one shape."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    type: str
    hidden: int | None = None
    layers: int | None = None
    vocab: int | None = None
    methods: tuple[str, ...]

    def serves(self, facts: ModelFacts) -> bool:
        """Whether a target has this shape."""
        told = ((self.hidden, facts.hidden_size), (self.layers, facts.layers), (self.vocab, facts.vocab_size))
        return self.type in facts.kind and all(mine is None or mine == theirs for mine, theirs in told)


@cache
def existing() -> tuple[Existing, ...]:
    """All of them."""
    written = yaml.safe_load((Path(__file__).parent / "existing.yaml").read_text(encoding="utf-8"))
    return tuple(Existing(**one) for one in written)


def drafter_exists(method: str, facts: ModelFacts) -> bool:
    """Whether a method needs no drafter of its own, or one is published for a target of this shape."""
    if METHODS[method].weights in ("none", "target"):
        return True
    return any(method in one.methods and one.serves(facts) for one in existing())
