"""A request's edits to the logits (allowed tokens, biases, bad words) as arrays, made once for all its answers."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from augury.config.sampling import SamplingParams

NONE = -1


def _ids() -> np.ndarray:
    return np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class LogitEdits:
    """The tokens that are allowed, the tokens with a bias, and the bad words."""

    allowed: np.ndarray | None = None  # int64, sorted, each once
    biased: np.ndarray = field(default_factory=_ids)  # int64
    bias: np.ndarray = field(default_factory=lambda: np.zeros(0, np.float32))
    words: np.ndarray = field(default_factory=lambda: np.zeros((0, 0), np.int64))  # one row per word, right-aligned

    @classmethod
    def of(cls, params: SamplingParams, words: list[list[int]]) -> LogitEdits:
        """From sampling parameters, and their bad words as tokens."""
        allowed = None if params.allowed_token_ids is None else np.unique(np.array(params.allowed_token_ids, np.int64))
        given = params.logit_bias or {}
        table = np.full((len(words), max(map(len, words), default=0)), NONE, np.int64)
        for line, word in zip(table, words, strict=True):
            line[len(line) - len(word) :] = word
        count = len(given)
        return cls(
            allowed, np.fromiter(given.keys(), np.int64, count), np.fromiter(given.values(), np.float32, count), table
        )


NOTHING = LogitEdits()
