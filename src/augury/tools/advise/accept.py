"""Tokens per step of a method at each K, with their uncertainty: from a replay's counts, or from acceptance rates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from augury.methods.bands import rate_for

SAMPLES = 400
SEED = 20
ENOUGH_DRAFTS = 200  # fewer are no evidence about a drafter
BEYOND = 1 / 18  # share of a range added on either side, so that nine draws in ten fall within the range
CLUSTERING = 4.0  # drafts of one answer are correlated: this many count as one


class StepSamples(NamedTuple):
    """A method's step at one K: row 0 is the best estimate, the other rows sample its uncertainty."""

    tokens: np.ndarray  # [1 + SAMPLES]: tokens a step emits, its own one included
    nodes: np.ndarray  # [1 + SAMPLES, K + 1]: share of the steps that verify so many drafted tokens


class AcceptanceSource(Protocol):
    """Known acceptance of a method at some values of K."""

    @property
    def lengths(self) -> tuple[int, ...]:
        """Every K whose acceptance is known."""
        ...

    def at(self, tokens: int) -> StepSamples:
        """Samples of a step with this K."""
        ...


@dataclass(frozen=True)
class ConversationCounts:
    """What one configuration did, one row per conversation."""

    emitted: np.ndarray  # [N] tokens that take a step each in plain decoding
    steps: np.ndarray  # [N]
    nodes: np.ndarray  # [N, K + 1] steps by tokens drafted
    accepted: np.ndarray  # [N]


@dataclass(frozen=True)
class Replayed:
    """Counts by K; conversations are resampled to see how much the figures depend on which were recorded."""

    counts: Mapping[int, ConversationCounts]

    @property
    def lengths(self) -> tuple[int, ...]:
        """Every K that was replayed."""
        return tuple(self.counts)

    def at(self, tokens: int) -> StepSamples:
        """Bootstrap samples of a step; every K and method draws the same conversations, to keep comparisons fair."""
        counts = self.counts[tokens]
        number = len(counts.steps)
        drawn = np.random.default_rng(SEED).multinomial(number, np.full(number, 1 / number), SAMPLES)
        weights = np.concatenate([np.ones((1, number)), drawn])
        # A draw with no steps at all says nothing: it is replaced with the whole set.
        weights[weights @ counts.steps == 0] = 1.0
        steps = np.maximum(weights @ counts.steps, 1)
        return StepSamples(np.maximum(weights @ counts.emitted / steps, 1.0), weights @ counts.nodes / steps[:, None])


@dataclass(frozen=True)
class Rated:
    """Marginal acceptance rates by position, with samples of their uncertainty; a draft always has K tokens."""

    marginal: np.ndarray  # [1 + SAMPLES, most]: share of drafts accepted through each position, non-increasing
    share: float = 1.0  # of steps that have a draft

    @property
    def lengths(self) -> tuple[int, ...]:
        """Every K up to the measured one."""
        return tuple(range(1, self.marginal.shape[1] + 1))

    def at(self, tokens: int) -> StepSamples:
        """Samples of a step with this K, from the rates of the first K positions."""
        emitted = 1 + self.share * self.marginal[:, :tokens].sum(1)
        nodes = np.zeros((len(emitted), tokens + 1))
        nodes[:, tokens], nodes[:, 0] = self.share, 1 - self.share
        return StepSamples(emitted, nodes)


def drafts_of(profile: Mapping[str, Any]) -> int:
    """Number of drafts a profile was computed from."""
    counts = profile["acceptance_length_histogram"].values()
    return sum(count for count in counts if isinstance(count, int) and not isinstance(count, bool) and count > 0)


def from_profile(profile: Mapping[str, Any]) -> Rated:
    """The rates of a checked speculation_profile.json; the uncertainty is that of a mean over as many drafts."""
    rates = np.array(profile["marginal_accept_rates"], np.float64)
    drafts = max(1.0, drafts_of(profile) / CLUSTERING)
    replay = profile.get("replay")
    share = replay.get("share_drafted", 1.0) if isinstance(replay, Mapping) else 1.0
    noise = np.random.default_rng(SEED).standard_normal((SAMPLES, 1))
    near = (rates * drafts + 1) / (drafts + 2)  # smoothed: a few drafts cannot show a rate of exactly 0 or 1
    wrong = np.sqrt(near * (1 - near) / drafts)
    lines = np.clip(rates + noise * wrong, 0, 1)
    share = float(share) if isinstance(share, int | float) and 0 <= share <= 1 else 1.0
    return Rated(np.concatenate([rates[None], np.minimum.accumulate(lines, axis=1)]), share)


def from_lengths(low: float, middle: float, high: float, tokens: int, discount: float = 1.0) -> Rated:
    """Rates from mean acceptance lengths at one K, with the same conditional rate at every position.

    `discount` is the lowest factor on the rate, for traffic the drafter was not trained on; the estimate takes the mean
    of it and 1.
    """
    random = np.random.default_rng(SEED)
    beyond = BEYOND * (high - low)
    drawn = random.uniform(low - beyond, high + beyond, SAMPLES)  # uniform: nothing is known about where in between
    rates = np.array([rate_for(length, tokens) for length in (middle, *drawn)])
    rates *= np.concatenate([[(1 + discount) / 2], random.uniform(discount, 1.0, SAMPLES)])
    return Rated(rates[:, None] ** np.arange(1, tokens + 1))
