"""Places in one grammar: which tokens it allows after a text and after every node of a draft.

Runs in the grammar's own process, where llguidance may take too long or fail without harm to other requests.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from augury.engine.grammar_limits import MESSAGE

WORD_BITS = 32
ROOT = -1


class GrammarState:
    """One request's place in the grammar."""

    def __init__(self, matcher: Any, width: int, barred: np.ndarray | None) -> None:
        self._matcher, self._width, self._barred = matcher, width, barred

    def fork(self, barred: np.ndarray | None) -> GrammarState:
        """A copy for another request; `barred` is a mask of tokens that it takes only if nothing else is allowed."""
        return GrammarState(self._matcher.deep_copy(), self._width, barred)

    @property
    def error(self) -> str | None:
        """Why the grammar cannot be parsed further, in one line; None if it can."""
        return " ".join(self._matcher.get_error().split())[:MESSAGE] if self._matcher.is_error() else None

    def consume(self, token: int) -> bool:
        """Consume a token that the request has kept; returns whether nothing may follow it."""
        return not self._matcher.consume_token(token) or bool(self._matcher.is_stopped())

    def mask(self) -> np.ndarray:
        """The mask of the tokens that may come next: int32 words, a bit per token."""
        return self._mask(self._matcher)

    def look_ahead(self, tokens: Sequence[int], parents: Sequence[int], seconds: float) -> tuple[list[int], np.ndarray]:
        """The nodes of a draft that the grammar allows, in order, and the masks after the text and after each of them.

        A node is checked with the whole path to it, so the descendants of a forbidden node are dropped too. So is what
        is not reached within `seconds` of processor time.
        """
        found = {ROOT: self.mask()}
        if tokens:
            kids: dict[int, list[int]] = {}
            for node, parent in enumerate(parents):
                kids.setdefault(parent, []).append(node)
            # On a copy: a draft that drives the parser over its limits must not end the request.
            limit = time.process_time() + seconds
            self._visit(self._matcher.deep_copy(), ROOT, kids, tokens, found, limit)
        kept = sorted(found)
        return kept[1:], np.stack([found[node] for node in kept])

    def _visit(
        self,
        scout: Any,
        node: int,
        kids: dict[int, list[int]],
        tokens: Sequence[int],
        found: dict[int, np.ndarray],
        limit: float,
    ) -> None:
        """Add the allowed nodes below `node`, where the scout stands, and roll it back to there."""
        if scout.is_stopped():
            return
        for child in kids.get(node, ()):
            if time.process_time() >= limit:
                return
            if allows(found[node], tokens[child]) and scout.consume_token(tokens[child]):
                mask = self._mask(scout)
                if scout.is_error():
                    return
                found[child] = mask
                self._visit(scout, child, kids, tokens, found, limit)
                scout.rollback(1)

    def _mask(self, matcher: Any) -> np.ndarray:
        mask = np.frombuffer(matcher.compute_bitmask(), dtype=np.int32)[: self._width]
        if self._barred is None:
            return mask
        rest = mask & ~self._barred
        return rest if rest.any() else mask


def end_words(ends: Sequence[int], width: int) -> np.ndarray:
    """The mask of the tokens that end a text."""
    words = np.zeros(width, dtype=np.int32)
    for token in ends:
        words.view(np.uint32)[token // WORD_BITS] |= np.uint32(1 << token % WORD_BITS)
    return words


def allows(mask: np.ndarray, token: int) -> bool:
    """Whether a mask allows a token."""
    return 0 <= token < len(mask) * WORD_BITS and bool(int(mask[token // WORD_BITS]) >> token % WORD_BITS & 1)
