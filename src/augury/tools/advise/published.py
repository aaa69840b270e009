"""What others have published: drafters for a target, and the acceptance of those not measured here."""

from __future__ import annotations

from functools import cache

from augury.config.facts import ModelFacts
from augury.methods.registry import METHODS
from augury.tools.advise.accept import Rated, from_lengths
from augury.tools.advise.tables import Row, rows
from augury.tools.knowledge.acceptance import Figure, figures, nearest

# A chat-trained head on code or agent traffic: lengths of 3 at K=3 were seen to fall to 2, this factor per position.
OUT_OF_DOMAIN = 0.67


class Existing(Row):
    """Drafters for targets of one shape."""

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
    """All drafters that are known to be published."""
    return rows("existing", Existing)


def drafter_exists(method: str, facts: ModelFacts) -> bool:
    """Whether a method needs no drafter of its own, or one is published for a target of this shape."""
    if METHODS[method].weights in ("none", "target"):
        return True
    return any(method in one.methods and one.serves(facts) for one in existing())


class Published(Figure):
    """A published acceptance figure that can be converted to rates."""

    def acceptance(self, kind: str) -> tuple[Rated, str]:
        """Rates up to the published K, and a note on the discount for the traffic, if any."""
        low, middle, high = self.length
        strange = METHODS[self.method].has_weights and self.kind == "chat" and kind in ("code", "agent")
        rates = from_lengths(low, middle, high, self.tokens, OUT_OF_DOMAIN if strange else 1.0)
        note = (
            f"a chat-trained drafter on {kind} traffic: rates cut by up to {1 - OUT_OF_DOMAIN:.0%}" if strange else ""
        )
        return rates, note


@cache
def published() -> tuple[Published, ...]:
    """All figures of acceptance."""
    return tuple(Published(**dict(one)) for one in figures())


def find_published(method: str, target_type: str, kind: str) -> Published | None:
    """The figure nearest to a target and its traffic."""
    found = nearest(method, target_type, kind)
    return Published(**dict(found)) if found else None
