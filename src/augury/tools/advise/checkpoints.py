"""Published drafters by name, and the one for a target: by the target's name, or else by its shape."""

from __future__ import annotations

import re
from functools import cache

from augury.config.facts import ModelFacts
from augury.tools.advise.tables import Row, rows


class PublishedDrafter(Row):
    """One published drafter."""

    method: str
    model: str
    target: str
    type: str
    hidden: int | None = None
    layers: int | None = None
    vocab: int | None = None
    known: str = ""

    def named(self, facts: ModelFacts) -> bool:
        """Whether the target has this name; names differ in owner, case and what follows the size."""
        mine, theirs = _plain(self.target), _plain(facts.name.rstrip("/").rpartition("/")[2])
        return bool(theirs) and (mine in theirs or (theirs in mine and len(theirs) > len("qwen3")))

    def shaped(self, facts: ModelFacts) -> bool:
        """Whether the target has the shape of the one it was made for."""
        told = ((self.hidden, facts.hidden_size), (self.layers, facts.layers), (self.vocab, facts.vocab_size))
        known = [(mine, theirs) for mine, theirs in told if mine is not None]
        return self.type in facts.kind and all(mine == theirs for mine, theirs in known)

    def remark(self, facts: ModelFacts) -> str:
        """What the drafter was made for and what is known of it, as text for the user."""
        doubt = "" if self.named(facts) else ", whose shape this is: its card says whether it serves your version"
        return f"{self.model} is for {self.target}{doubt}" + (f"; {self.known}" if self.known else "")


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower().replace("meta-", "")).strip("-")


@cache
def checkpoints() -> tuple[PublishedDrafter, ...]:
    """All rows of checkpoints.yaml."""
    return rows("checkpoints", PublishedDrafter)


def find_checkpoint(method: str, facts: ModelFacts) -> PublishedDrafter | None:
    """The drafter made for this target by name, or else for a target of its shape; None if there is none."""
    fitting = [one for one in checkpoints() if one.method == method and one.shaped(facts)]
    by_name = [one for one in fitting if one.named(facts)]
    return next(iter(by_name or [one for one in fitting if one.hidden is not None]), None)
