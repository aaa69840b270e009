"""Suffix decoding: continue a text as the same words were continued before.

Every active request has a tree of its own over prompt and response. Each tenant has one tree over the responses of
its requests, kept after they end and dropped oldest first. Trees of different tenants share only the memory pool.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

import numpy as np

from augury.index.suffix_arena import Arena
from augury.index.suffix_batch import (
    BAD_TOKEN,
    HIGHEST,
    NO_ROOM,
    OWN,
    PROMPT,
    SHARED,
    TOO_SHORT,
    TREE,
    count_in,
    draft_one,
    extend,
    serve,
)
from augury.index.suffix_draft import PARENTS, PROBS
from augury.index.suffix_layout import LENGTH, NONE, ROOT
from augury.index.suffix_rule import SuffixDraft, SuffixRule, Tokens, as_tokens
from augury.index.suffix_stock import Stock

_NOTHING = np.empty(0, np.int64)


class SuffixCache:
    """The index; any thread may call any method."""

    def __init__(self, max_depth: int = 24, max_requests: int = 10_000, max_bytes: int | None = None) -> None:
        """Match and draft up to `max_depth` tokens together; keep `max_requests` responses (-1: all) in `max_bytes`."""
        if not 1 <= max_depth <= 32_767:
            raise ValueError(f"max_depth must be between 1 and 32767 tokens, got {max_depth}.")
        if max_requests < -1:
            raise ValueError(f"max_requests must be at least 0, or -1 for no limit, got {max_requests}.")
        if max_bytes is not None and max_bytes <= 0:
            raise ValueError(f"max_bytes must be positive, or None for no limit, got {max_bytes}.")
        self.max_depth, self.max_requests, self.max_bytes = max_depth, max_requests, max_bytes
        self.refused = 0  # requests that ran without an index because the memory limit left no room
        self._lock = threading.RLock()
        self._stock = Stock(Arena(max_depth, max_bytes), max_requests, self._gone)
        self._book = np.full((0, 4), NONE, np.int64)  # see suffix_batch
        self._active: dict[str, tuple[int, str]] = {}  # request -> its line in the book, its tenant
        self._free_lines: list[int] = []
        self._ints, self._floats = np.empty((10, max_depth + 1), np.int64), np.empty((3, max_depth + 1))  # see Desk

    @property
    def bytes(self) -> int:
        """Memory held by the index, room to grow included."""
        return self._stock.arena.bytes

    @property
    def tokens(self) -> int:
        """Tokens held, those of running requests included."""
        with self._lock:
            return self._stock.arena.tokens

    @property
    def active(self) -> list[str]:
        """Requests that are running."""
        with self._lock:
            return list(self._active)

    @property
    def cached(self) -> list[str]:
        """Requests whose responses are kept, oldest first."""
        with self._lock:
            return list(self._stock.cached)

    def responses(self) -> list[tuple[str, str, np.ndarray]]:
        """(tenant, request, tokens) of every response kept, oldest first."""
        with self._lock:
            return [(c.tenant, name, self._stock.arena.read(c.sequence)) for name, c in self._stock.cached.items()]

    def start(self, request: str, prompt: Tokens, tenant: str = "") -> int:
        """Begin a request; a response kept under the same name is dropped. Returns the handle that `step` takes."""
        ids, stock = as_tokens(prompt), self._stock
        with self._lock:
            if request in self._active:
                raise ValueError(f"request {request!r} is already active; stop it first, or use another name.")
            if request in stock.cached:
                stock.evict(request)
            line = self._new_line()
            self._active[request] = line, tenant
            self._book[line, PROMPT] = len(ids)
            if not stock.make_room(0, 3):
                self.refused += 1
                return line
            self._book[line, OWN] = stock.arena.open(stock.arena.plant())
            if self.max_requests != 0:
                self._book[line, TREE] = stock.hold(tenant)
                self._book[line, SHARED] = stock.keep(request, tenant)
            self._extend(request, ids, OWN)
            return line

    def append(self, request: str, tokens: Tokens) -> None:
        """Add accepted tokens to a request's response."""
        ids = as_tokens(tokens)
        with self._lock:
            own, shared, _, _ = self._book[self._line_of(request)].tolist()
            if not extend(*self._stock.arena.arrays, own, shared, ids):
                self._extend(request, ids, OWN)
                self._extend(request, ids, SHARED)

    def speculate(
        self,
        request: str,
        context: Tokens | None = None,
        *,
        max_tokens: int | None = None,
        factor: float = 1.0,
        offset: float = 0.0,
        min_prob: float = 0.1,
        tree: bool = False,
        width: int | None = None,
    ) -> SuffixDraft:
        """The best continuation of a request's text, or of `context`; `width` limits a node's children."""
        most = self.max_depth if max_tokens is None else max(max_tokens, 0)
        kids = (most if width is None else width) if tree and most > 0 else 1
        if not (0 <= factor < 1e6 and -1e6 < offset < 1e6 and 0 <= min_prob <= 1 and kids >= 1):
            SuffixRule(factor, offset, min_prob, kids).checked()  # raises if something is wrong
        live, ids = context is None, _NOTHING if context is None else as_tokens(context)
        with self._lock:
            line = self._line_of(request)
            if most == 0 or self._book[line, OWN] < 0:
                return SuffixDraft([], [], [], 0.0, 0)
            if self._ints.shape[1] <= most:
                self._ints, self._floats = np.empty((10, most + 1), np.int64), np.empty((3, most + 1))
            count, score, match = draft_one(
                *self._stock.arena.arrays,
                self._book,
                line,
                ids,
                live,
                most,
                float(factor),
                float(offset),
                float(min_prob),
                kids,
                self._ints,
                self._floats,
            )
            tokens, parents = self._ints[: PARENTS + 1, :count].tolist()
            return SuffixDraft(tokens, parents, self._floats[PROBS, :count].tolist(), score, match)

    def count(self, tokens: Tokens, tenant: str = "", request: str | None = None) -> int:
        """How often up to max_depth tokens in a row occur in a tenant's responses, or in a running request's text."""
        ids = as_tokens(tokens)
        if not 1 <= len(ids) <= self.max_depth:
            raise ValueError(f"only strings of 1 to {self.max_depth} tokens are counted, got {len(ids)}.")
        with self._lock:
            arrays = self._stock.arena.arrays
            if request is None:
                root = self._stock.roots.get(tenant, NONE)
            else:
                own = self._book[self._line_of(request), OWN]
                root = int(arrays.sequences[own, ROOT]) if own >= 0 else NONE
            return int(count_in(*arrays, root, ids)) if root >= 0 else 0

    def step(
        self,
        handles: np.ndarray,
        history: np.ndarray,
        rows: np.ndarray,
        lengths: np.ndarray,
        budget: np.ndarray,
        limit: int,
        rule: SuffixRule,
        tokens: np.ndarray,
        parents: np.ndarray,
        counts: np.ndarray,
    ) -> None:
        """Index a batch's new tokens, then draft for every request; see suffix_batch.serve."""
        batch = (handles, history, rows, lengths, budget, limit, *rule, tokens, parents, counts)
        with self._lock:
            while True:
                state = serve(*self._stock.arena.arrays, self._book, *batch)
                if state == BAD_TOKEN:
                    raise ValueError(f"the history holds a token id that is negative or above {HIGHEST} (int32).")
                if state == TOO_SHORT:
                    raise ValueError("a text is shorter than at the step before; stop its request and start it again.")
                if state != NO_ROOM:
                    return
                self._clear_the_way(handles, lengths)

    def lengths(self, handles: np.ndarray) -> np.ndarray:
        """How many tokens of each running request are known; -1 for one without an index and for a handle of -1."""
        with self._lock:
            sequences = self._stock.arena.arrays.sequences
            if not len(self._book) or not len(sequences):  # nothing was started yet, or nothing had room
                return np.full(len(handles), NONE)
            own = np.where(handles >= 0, self._book[handles, OWN], NONE)
            return np.where(own >= 0, sequences[own, LENGTH], NONE)

    def stop(self, request: str) -> None:
        """End a request: drop its own tree, keep its response."""
        with self._lock:
            line = self._line_of(request)
            if self._book[line, OWN] >= 0:
                self._stock.arena.fell(int(self._book[line, OWN]))
            if self._book[line, TREE] >= 0:
                self._stock.release(self._active[request][1])
            self._book[line] = NONE
            self._free_lines.append(line)
            del self._active[request]

    def __contains__(self, request: object) -> bool:
        """Whether a response is kept under this name."""
        return request in self._stock.cached

    def evict(self, request: str) -> None:
        """Drop a response from its tenant's tree; a request that is still running keeps its own tree."""
        with self._lock:
            if request not in self._stock.cached:
                raise ValueError(f"request {request!r} is not in the cache.")
            self._stock.evict(request)

    def add(self, request: str, tokens: Tokens, tenant: str = "") -> bool:
        """Keep a finished response; False if there is no room for it. One kept under the same name is dropped."""
        ids = as_tokens(tokens)
        with self._lock:
            if request in self._active:
                raise ValueError(f"request {request!r} is active; stop it first, or use another name.")
            if request in self._stock.cached:
                self._stock.evict(request)
            return self._stock.add(request, ids, tenant)

    def build(self, sequences: Iterable[Tokens], tenant: str = "", prefix: str = "corpus-") -> int:
        """Keep many finished responses, oldest first, named by number; returns how many tokens were taken in."""
        total = 0
        for i, sequence in enumerate(sequences):
            total += len(sequence) if self.add(f"{prefix}{i}", sequence, tenant) else 0
        return total

    # The caller of the methods below holds the lock.

    def _line_of(self, request: str) -> int:
        if request not in self._active:
            raise ValueError(f"request {request!r} is not active; start it first.")
        return self._active[request][0]

    def _new_line(self) -> int:
        if not self._free_lines:
            size = len(self._book)
            self._book = np.concatenate([self._book, np.full((max(64, size), 4), NONE, np.int64)])
            self._free_lines = list(range(len(self._book) - 1, size - 1, -1))
        return self._free_lines.pop()

    def _extend(self, request: str, ids: np.ndarray, column: int) -> None:
        """Append to one of a request's two sequences; if it does not fit, drop that sequence."""
        line = self._active[request][0]
        if self._book[line, column] < 0:
            return
        if not self._stock.enter(int(self._book[line, column]), ids, request):
            if column == OWN:
                self._refuse(line)
            else:
                self._stock.evict(request)

    def _refuse(self, line: int) -> None:
        self._stock.arena.fell(int(self._book[line, OWN]))
        self._book[line, OWN] = NONE
        self.refused += 1

    def _gone(self, request: str) -> None:
        if request in self._active:
            self._book[self._active[request][0], SHARED] = NONE

    def _clear_the_way(self, handles: np.ndarray, lengths: np.ndarray) -> None:
        """Make room for a step; if nothing is left to drop, the largest requests run without an index."""
        known = self.lengths(handles)
        wanted = {
            int(handle): int(length - old)
            for handle, length, old in zip(handles, lengths, known, strict=True)
            if length > 0 and old >= 0
        }
        while wanted and not self._stock.make_room(2 * sum(wanted.values()), 2 * len(wanted)):
            greedy = max(wanted, key=wanted.__getitem__)
            self._refuse(greedy)
            del wanted[greedy]
