"""Structured output: which tokens a request's grammar allows, after its text and after every drafted node.

llguidance does the parsing, in a process for each grammar (grammar_pool.py): a schema can make it overflow its stack,
take all memory or never return, at its first mask or at its thousandth, and then only requests with this grammar end.
The engine receives masks. A request's place in its grammar advances with the tokens that the request keeps: tokens that
are computed again after a preemption, or found in the prefix cache, are not parsed again.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np

from augury.config.errors import ConfigError
from augury.config.sampling import SamplingParams
from augury.engine.grammar_jobs import GrammarChild, Ticket
from augury.engine.grammar_limits import GrammarLimits
from augury.engine.grammar_match import WORD_BITS
from augury.engine.grammar_pool import Pool
from augury.engine.grammar_source import source_of
from augury.engine.grammar_wire import Gone
from augury.model.tokenizer import Tokenizer

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Ahead(NamedTuple):
    """What a step asks of a grammar: to consume tokens, and to check the draft after them."""

    grammar: Grammar
    read: Sequence[int]
    tokens: Sequence[int] | None  # None: no masks are needed
    parents: Sequence[int] = ()


class GrammarMatcher:
    """A handle on one request's parser state in its grammar's process."""

    def __init__(self, pool: Pool, process: GrammarChild, place: int, bare: bool) -> None:
        self.pool, self.process, self.place, self.bare = pool, process, place, bare

    def __del__(self) -> None:
        self.process.drop(self.place)

    def fork(self, bare: bool) -> GrammarMatcher:
        """A copy of the state for another request."""
        return GrammarMatcher(self.pool, self.process, self.process.copy(self.place, bare), bare)

    def consume_token(self, token: int) -> None:
        """Advance the parser by a token that the request does not have."""
        self.process.send(step=[(self.place, [token], None, [])], burst=self.pool.limits.burst_seconds)
        self.process.link.receive()


class Grammar:
    """One request's place in its grammar, and the masks for its next pass."""

    def __init__(self, matcher: GrammarMatcher, masks: np.ndarray) -> None:
        self._matcher = matcher
        self.masks = masks  # int32 [1 + nodes, W]: after the text, after each pending node
        self.error: str | None = None  # why the grammar cannot be parsed further, in one line
        self._foreseen: list[bool] = []  # for tokens that were read ahead: whether nothing may follow
        self._kept: list[int] | None = None  # the allowed nodes of a draft that was checked ahead

    def fork(self) -> Grammar:
        """A copy for another request, at the same place."""
        return Grammar(self._matcher.fork(self._matcher.bare), self.masks)

    def consume(self, token: int) -> bool:
        """Consume a token that the request has kept; returns whether nothing may follow it."""
        if not self._foreseen:
            advance([Ahead(self, [token], None)])
        return self._foreseen.pop(0)

    def look_ahead(self, tokens: Sequence[int], parents: Sequence[int]) -> list[int]:
        """The nodes of a draft that the grammar allows, in order; `masks` are then those after the text and after them.

        A node is checked with the whole path to it, so the descendants of a forbidden node are dropped too.
        """
        if self._kept is None:
            advance([Ahead(self, [], tokens, parents)])
        kept, self._kept = self._kept or [], None
        return kept

    def take(self, asked: Ahead, ended: int | None, error: str | None, kept: list[int], masks: np.ndarray) -> None:
        """Take the answer of the grammar's process."""
        self.error = self.error or error
        self._foreseen = [i == ended for i in range(len(asked.read))]
        if asked.tokens is not None:
            self._kept = kept
            self.masks = masks if len(masks) else self.masks

    def fail(self, asked: Ahead, why: str) -> None:
        """Mark it failed: its process has ended."""
        self.take(asked, 0, why, [], self.masks[:0])


def advance(asked: Iterable[Ahead]) -> None:
    """Query all grammars of a step at once: their processes work in parallel."""
    groups: dict[GrammarChild, list[Ahead]] = {}
    for one in asked:
        groups.setdefault(one.grammar._matcher.process, []).append(one)
    for process, group in groups.items():
        burst = group[0].grammar._matcher.pool.limits.share(len(groups), CORES)
        step = [(one.grammar._matcher.place, one.read, one.tokens, one.parents) for one in group]
        try:
            if process.error is None:
                process.send(step=step, burst=burst)
        except Gone:
            _lose(process, group)
    for process, group in groups.items():
        try:
            if process.error is None:
                _receive(process, group)
        except Gone:
            _lose(process, group)
        if process.error is not None:
            for one in group:
                one.grammar.fail(one, process.error)


def _receive(process: GrammarChild, group: list[Ahead]) -> None:
    message, body = process.link.receive()
    process.measure(message["bytes"])
    words, begin = np.frombuffer(body, dtype=np.int32).reshape(-1, group[0].grammar.masks.shape[1]), 0
    for one, (ended, error, kept) in zip(group, message["answers"], strict=True):
        size = 1 + len(kept) if ended is None and one.tokens is not None else 0
        one.grammar.take(one, ended, error, kept, words[begin : begin + size])
        begin += size


def _lose(process: GrammarChild, group: list[Ahead]) -> None:
    process.error = group[0].grammar._matcher.pool.lost(process)


class Grammars:
    """Compiles the grammars of requests, for one vocabulary; a source seen before is not compiled again."""

    def __init__(self, tokenizer: Tokenizer, vocab: int, limits: GrammarLimits | None = None) -> None:
        _check(tokenizer)
        self._width = -(-vocab // WORD_BITS)
        given = {"n_vocab": max(vocab, len(tokenizer)), "ends": _ends(tokenizer), "width": self._width}
        self.pool = Pool(lambda: {**given, "tokenizer": _text(tokenizer)}, limits or GrammarLimits())
        self._lock = threading.RLock()

    def ask(self, params: SamplingParams, client: str = "") -> Ticket:
        """Queue a request's grammar to be compiled; a ConfigError if it cannot be."""
        assert params.structured_outputs is not None
        return self.pool.ask(source_of(params.structured_outputs), client)

    def begin(self, params: SamplingParams, process: GrammarChild) -> Grammar:
        """A request's grammar, at its start."""
        # With `ignore_eos` a text continues for as long as the grammar allows anything but its end.
        matcher = GrammarMatcher(self.pool, process, process.copy(0, params.ignore_eos), params.ignore_eos)
        grammar = Grammar(matcher, np.frombuffer(process.mask, dtype=np.int32)[None])
        if params.ignore_eos:
            grammar.look_ahead([], [])
        return grammar

    def start(self, params: SamplingParams) -> Grammar | None:
        """A request's grammar, compiled while the caller waits; None if it has none. ConfigError if it cannot be."""
        if params.structured_outputs is None:
            return None
        with self._lock:
            return self.begin(params, self.pool.wait(self.ask(params)))


def _check(tokenizer: Tokenizer) -> None:
    if find_spec("llguidance") is None:
        raise ConfigError("structured_outputs needs the package llguidance: pip install 'augury[engine]'.")
    if not hasattr(tokenizer.inner, "backend_tokenizer"):
        raise ConfigError("structured_outputs cannot read this model's tokenizer: only fast tokenizers are supported.")
    if not _ends(tokenizer):
        raise ConfigError("structured_outputs needs a tokenizer with an end-of-text token, and this model names none.")


def _ends(tokenizer: Tokenizer) -> list[int]:
    return sorted(token for token in tokenizer.eos_ids if token < len(tokenizer))


def _text(tokenizer: Tokenizer) -> str:
    """The tokenizer as JSON, with tokens that were added to it and without padding or truncation."""
    from copy import copy

    backend: Any = copy(tokenizer.inner.backend_tokenizer)
    backend.no_padding()
    backend.no_truncation()
    return str(backend.to_str())
