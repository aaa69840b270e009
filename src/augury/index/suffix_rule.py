"""Inputs and outputs of the suffix index: token ids, the rule for drafts, a draft."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from augury.index.suffix_batch import HIGHEST, first_bad

Tokens = Sequence[int] | np.ndarray


class SuffixDraft(NamedTuple):
    """A draft: node i hangs from parents[i], -1 being the end of the text."""

    tokens: list[int]
    parents: list[int]
    probs: list[float]
    score: float  # tokens expected to be accepted
    match_len: int  # last tokens of the text that were found


class SuffixRule(NamedTuple):
    """How long drafts may be, and how probable their tokens must be."""

    factor: float = 1.0  # tokens drafted for each token matched
    offset: float = 0.0
    min_prob: float = 0.1  # no token less probable than this
    width: int = 1  # most kids per node: 1 is a path, more a tree

    def checked(self) -> SuffixRule:
        """This rule with its numbers in the types that the compiled code takes; ValueError if one makes no sense."""
        factor, offset, min_prob, width = self
        if not (0 <= factor < 1e6 and -1e6 < offset < 1e6):
            raise ValueError(f"factor (at least 0) and offset must be finite, got {factor} and {offset}.")
        if not 0 <= min_prob <= 1:
            raise ValueError(f"min_prob must be between 0 and 1, got {min_prob}.")
        if width < 1:
            raise ValueError(f"width must be at least 1, got {width}.")
        return SuffixRule(float(factor), float(offset), float(min_prob), int(width))


def as_tokens(given: Tokens) -> np.ndarray:
    """Token ids as int64; ValueError if one does not fit int32."""
    ids = np.asarray(given)
    if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
        raise ValueError(f"tokens must be a flat sequence of integers, got {ids.dtype} of shape {ids.shape}.")
    wide = np.ascontiguousarray(ids, dtype=np.int64)
    bad = first_bad(wide)
    if bad >= 0:
        raise ValueError(f"token id {ids[bad]} at index {bad} is out of range; ids are 0 to {HIGHEST} (int32).")
    return wide
