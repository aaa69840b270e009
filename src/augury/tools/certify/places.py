"""Where sampled texts are compared with the law they should follow: the next token after a given beginning.

The first token of an answer is drawn before anything is drafted; what a rule does shows in the tokens after it. So the
law is tested after the most frequent beginnings of every length: together they make up the law of whole texts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from augury.tools.certify.statistics import CountCell, Fit, chi2_survival, detectable_variation, holm

WIDEST = 4  # beginnings of one length, at most
LEAST_SAMPLES = 100  # needed to test a beginning
ALPHA = 0.01  # probability that the whole certificate fails when nothing is wrong
POWER = 0.9
Text = tuple[Hashable, ...]


class TestedPlace(NamedTuple):
    """One beginning of one prompt's answers, and how the tokens after it are distributed."""

    setting: str
    prompt: int
    beginning: str  # as text; empty at the start of the answer
    depth: int  # tokens before the one tested
    cells: list[CountCell[str]]
    fit: Fit
    outside: int = 0  # tokens here that plain sampling rules out


def beginnings(texts: Sequence[Sequence[Hashable]], depth: int) -> list[tuple[Text, Counter[Any]]]:
    """The most frequent beginnings shorter than `depth`, each with the counts of the tokens after it."""
    found: list[tuple[Text, Counter[Any]]] = []
    for length in range(depth):
        behind: dict[Text, Counter[Any]] = {}
        for text in texts:
            if len(text) > length:
                behind.setdefault(tuple(text[:length]), Counter())[text[length]] += 1
        common = sorted(behind.items(), key=lambda item: -item[1].total())[:WIDEST]
        found += [(beginning, counts) for beginning, counts in common if counts.total() >= LEAST_SAMPLES]
    return found


@dataclass(frozen=True, slots=True)
class PlacesVerdict:
    """The tests of all places, judged together."""

    places: list[TestedPlace]
    alpha: float
    adjusted: list[float]  # Holm's p-values of the places, then that of their sum
    together: Fit  # the sum of all statistics: detects a small shift that is everywhere

    @property
    def holds(self) -> bool:
        """Whether no test is significant at level alpha."""
        return min(self.adjusted, default=1.0) >= self.alpha

    @property
    def samples(self) -> int:
        """Number of sampled tokens tested."""
        return round(sum(cell.observed for place in self.places for cell in place.cells))

    def finds(self, fit: Fit) -> float:
        """The smallest shift, in total variation, that this test would have detected with probability POWER."""
        return detectable_variation(fit.size, fit.df, self.alpha / max(1, len(self.adjusted)), POWER)

    def record(self) -> dict[str, Any]:
        """For --json."""
        return {
            "holds": self.holds,
            "alpha": self.alpha,
            "correction": "Holm",
            "power": POWER,
            "tests": len(self.adjusted),
            "sampled_tokens": self.samples,
            "together": {**_fit_record(self.together), **self._judged(len(self.places), self.together)},
            "places": [self._place(i, place) for i, place in enumerate(self.places)],
        }

    def _judged(self, number: int, fit: Fit) -> dict[str, float]:
        return {"p_adjusted": self.adjusted[number], "detectable_total_variation": round(self.finds(fit), 4)}

    def _place(self, number: int, place: TestedPlace) -> dict[str, Any]:
        cells = [{"token": cell.label, "observed": cell.observed, "expected": cell.expected} for cell in place.cells]
        return {
            "setting": place.setting,
            "prompt": place.prompt,
            "beginning": place.beginning,
            "depth": place.depth,
            **_fit_record(place.fit),
            **self._judged(number, place.fit),
            "outside": place.outside,
            "cells": cells,
        }


def _fit_record(fit: Fit) -> dict[str, Any]:
    return {"G": fit.statistic, "chi_square": fit.pearson, "df": fit.df, "p": fit.p, "effective_samples": fit.size}


def judge(places: Sequence[TestedPlace], alpha: float = ALPHA) -> PlacesVerdict:
    """Judge all places, and their sum, as one family of tests; places with a single cell are skipped."""
    telling = [place for place in places if place.fit.df]
    df = sum(place.fit.df for place in telling)
    total = sum(place.fit.statistic for place in telling)
    pearson, size = sum(place.fit.pearson for place in telling), sum(place.fit.size for place in telling)
    together = Fit(total, pearson, df, chi2_survival(total, df) if df else 1.0, size)
    adjusted = holm([*(place.fit.p for place in telling), together.p])
    return PlacesVerdict(telling, alpha, adjusted, together)
