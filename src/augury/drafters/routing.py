"""Which of several drafters leads, for one request and one step: the one that promises most tokens for its cost.

Each drafter is judged by the generated text, whether its own draft was tried or not: a look-up's draft costs nothing to
make, so it is always known how it would have fared. A look-up is judged by its run, the tokens in a row that it has
predicted correctly: a copy that has held for sixteen tokens rarely ends at the next. A model is judged by position.
What is learnt from a request is mixed with what is learnt from all requests; both fade, so that a change in the text is
noticed within a few dozen steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

RUNS = (1, 4, 8, 16)  # bounds of the classes of runs
BY_RUN = (0.25, 0.5, 0.75, 0.85, 0.92)  # acceptance assumed for a look-up before anything is seen, by class of run,
OF_A_MODEL = 0.6  # and for a model, at every position
WEIGHT = 4.0  # what is known beforehand, from all requests, counts as much as this many of a request's own tokens
FADES = 0.98  # decay of what was seen before, per token
ROW = 0.03  # cost of a row of the target's pass, in passes of one row,
STEP = 0.1  # and of a token that a model drafts


@dataclass(frozen=True, slots=True)
class RoutingCosts:
    """What drafts cost, in passes without drafts."""

    passes: Sequence[float] = ()  # a pass with 0, 1, 2, ... tokens more; empty: not measured
    step: float = STEP

    def of(self, nodes: int) -> float:
        """A pass that verifies this many draft tokens of one request."""
        return self.passes[min(nodes, len(self.passes) - 1)] if self.passes else 1 + ROW * nodes


ASSUMED = RoutingCosts()


@dataclass(slots=True)
class AcceptanceTally:
    """How often draft tokens of one kind were right."""

    right: float = 0.0
    tried: float = 0.0

    def add(self, right: bool) -> None:
        """Count one token, right or wrong."""
        self.right, self.tried = FADES * self.right + right, FADES * self.tried + 1

    def rate(self, before: float) -> float:
        """The share that is right, mixed with a rate known `before`."""
        return (self.right + WEIGHT * before) / (self.tried + WEIGHT)


@dataclass(slots=True)
class DrafterRecord:
    """What is known of one drafter, from one request or from all of them."""

    tallies: dict[int, AcceptanceTally] = field(
        default_factory=dict
    )  # by the kind of token: a class of runs, or a position

    def of(self, kind: int) -> AcceptanceTally:
        """The tally of one kind."""
        return self.tallies.setdefault(kind, AcceptanceTally())


def kind_of(run: int) -> int:
    """The class of a run of so many tokens."""
    return sum(run >= bound for bound in RUNS)


@dataclass(slots=True)
class Guess:
    """A drafter's draft for one request, and its run at that time."""

    tokens: list[int]
    run: int = 0
    ended: bool = False  # the model was too unsure to go on


class DrafterScores:
    """All that is known of one drafter."""

    def __init__(self, is_model: bool) -> None:
        self.is_model = is_model
        self._all = DrafterRecord()
        self._own: dict[int, DrafterRecord] = {}  # by slot
        self._runs: dict[int, int] = {}

    def forget(self, slot: int) -> None:
        """Forget a slot that its request has left."""
        self._own.pop(slot, None)
        self._runs.pop(slot, None)

    def run(self, slot: int) -> int:
        """Tokens in a row that it has predicted correctly in a slot."""
        return self._runs.get(slot, 0)

    def judge(self, slot: int, guess: Guess, came: Sequence[int]) -> int:
        """Compare a draft with the text that was generated, and return how many of its tokens were right.

        Nothing is learnt of draft tokens beyond that text. One that a model was too unsure to draft counts as wrong.
        """
        known = min(len(guess.tokens), len(came))
        right = next((i for i in range(known) if guess.tokens[i] != came[i]), known)
        own = self._own.setdefault(slot, DrafterRecord())
        for i in range(min(right + 1, known)):
            kind = i if self.is_model else kind_of(guess.run)
            for record in (self._all, own):
                record.of(kind).add(i < right)
        if guess.ended and right == len(guess.tokens):
            for record in (self._all, own):
                record.of(right).add(False)
        whole = right == known and known > 0
        # A draft that ended early says nothing of the tokens after it: they do not break the run.
        self._runs[slot] = guess.run + len(came) if whole else 0
        return right

    def rates(self, slot: int, run: int, length: int) -> list[float]:
        """The chance of each token of a draft to be right, given those before it."""
        own = self._own.get(slot) or DrafterRecord()
        if not self.is_model:
            kind = kind_of(run)
            return [own.of(kind).rate(self._all.of(kind).rate(BY_RUN[kind]))] * length
        return [own.of(i).rate(self._all.of(i).rate(OF_A_MODEL)) for i in range(length)]

    def promise(self, slot: int, run: int, length: int, costs: RoutingCosts = ASSUMED) -> tuple[float, int]:
        """The best of its drafts up to a length: expected tokens per pass's worth of time, and its length."""
        best, most, tokens, chance = 0, 1.0, 1.0, 1.0
        for i, rate in enumerate(self.rates(slot, run, length)):
            chance *= rate
            tokens += chance
            value = tokens / (costs.of(i + 1) + (costs.step * (i + 1) if self.is_model else 0.0))
            if value > most:
                best, most = i + 1, value
        return most, best
