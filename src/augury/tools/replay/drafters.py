"""The model-free methods, set up to walk whole conversations: one index for all turns of one, grown as it goes.

The text before a turn is the text after the turn before it, so nothing is indexed twice; an engine that starts every
turn afresh drafts the same.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns
from typing import Protocol

import numpy as np

from augury.config.speculative import SpeculativeConfig
from augury.index.suffix_arena import Arena
from augury.index.suffix_batch import DONE, NO_ROOM
from augury.index.suffix_layout import LENGTH, NONE
from augury.index.suffix_rule import Rule
from augury.index.suffix_stock import Stock
from augury.methods.registry import LOOK_UPS, load
from augury.tools.replay.tokens import Script
from augury.tools.replay.walk import walk_ngram, walk_suffix

NO_LIMIT = 1 << 40
ALL = 1 << 60  # steps
TIMED = 32  # one step in so many is timed by itself
GROWTH = 4096  # tokens room is made for when an index is full


class Walker(Protocol):
    """A method that walks conversations."""

    most: int  # nodes a draft may have
    kept_free: int  # places before the end of a text that no draft takes: its last token needs none

    def walk(self, script: Script, curve: np.ndarray) -> np.ndarray:
        """Decode every response of a conversation; gives a line of counts for each, and adds to the curve."""
        ...

    @property
    def memory(self) -> tuple[int, int]:
        """The most bytes the index has held, and the tokens in it then."""
        ...


class Clock:
    """How long drafting takes: a sample of single steps, each called as an engine calls it."""

    def __init__(self) -> None:
        self.steps = 0
        self.samples: list[int] = []  # nanoseconds

    def walk(self, advance: Callable[[int, int], int], start: int, stop: int) -> None:
        """Run advance(from, steps) up to `stop`, all at once, or step by step when it is a sample's turn."""
        if len(self.samples) * TIMED > self.steps:
            start = advance(start, ALL) if start < stop else stop
        while start < stop:
            before = perf_counter_ns()
            start = advance(start, 1)
            self.samples.append(perf_counter_ns() - before)


class NgramWalker:
    """Prompt lookup; also ngram_gpu, which drafts the same."""

    kept_free = 1

    def __init__(self, config: SpeculativeConfig, limit: int = NO_LIMIT) -> None:
        """Take bounds, match rule and length from the configuration; no text grows past `limit` tokens."""
        assert config.prompt_lookup_min and config.prompt_lookup_max  # `resolve` fills both in
        self.bounds = config.prompt_lookup_min, config.prompt_lookup_max, config.prompt_lookup_match == "latest"
        self.most, self.limit, self.clock = config.num_speculative_tokens, limit, Clock()
        self._arena, self._state = np.empty(0, np.int32), np.zeros((1, 5), np.int64)
        self._memory = 0, 0

    @property
    def memory(self) -> tuple[int, int]:
        """The most bytes a request's tables took, and how long its text was."""
        return self._memory

    def walk(self, script: Script, curve: np.ndarray) -> np.ndarray:
        """Decode every response of a conversation."""
        lines = np.zeros((len(script.spans), 4), np.int64)
        text, size = script.text[None], len(script.text)
        capacity = 1 << max(6, (2 * size - 1).bit_length())
        room = capacity * (self.bounds[1] - self.bounds[0] + 1)
        if room > len(self._arena):
            self._arena, self._memory = np.empty(room, np.int32), (4 * room, size)
        self._state[0] = 0, capacity, 0, 0, 0
        for (start, stop), line in zip(script.spans, lines, strict=True):

            def advance(at: int, steps: int, stop: int = stop, line: np.ndarray = line) -> int:
                return int(
                    walk_ngram(
                        text,
                        at,
                        stop,
                        steps,
                        self._arena,
                        self._state,
                        *self.bounds,
                        self.limit,
                        self.most,
                        line,
                        curve,
                    )
                )

            self.clock.walk(advance, start + 1, stop)
            self.clock.steps += int(line[0])
        return lines


class SuffixWalker:
    """Suffix decoding: a tree over the conversation, and one a tenant over all responses before."""

    kept_free = 0  # its index keeps a place free by itself

    def __init__(self, config: SpeculativeConfig, limit: int = NO_LIMIT) -> None:
        """Take depth, rule and length from the configuration; no text grows past `limit` tokens."""
        tree = config.tree
        self.most = tree.max_nodes if tree else config.num_speculative_tokens
        self.rule = Rule(
            config.suffix_decoding_max_spec_factor,
            0.0,
            config.suffix_decoding_min_token_prob,
            tree.top_k if tree else 1,
        ).checked()
        self.limit, self.clock = limit, Clock()
        self.kept = config.suffix_decoding_max_cached_requests
        self.stock = Stock(Arena(config.suffix_decoding_max_tree_depth, None), self.kept, self._gone)
        self._book = np.full((1, 4), NONE, np.int64)
        self._names = 0

    @property
    def memory(self) -> tuple[int, int]:
        """Bytes held, room to grow included, and tokens kept."""
        return self.stock.arena.bytes, self.stock.arena.tokens

    def preload(self, responses: list[tuple[str, str, np.ndarray]]) -> None:
        """Take in the responses of a saved cache: (tenant, name, tokens)."""
        for tenant, _, tokens in responses:
            self.stock.add(self._name(), tokens.astype(np.int64), tenant)

    def walk(self, script: Script, curve: np.ndarray) -> np.ndarray:
        """Decode every response of a conversation; each is kept for those after it."""
        lines, stock = np.zeros((len(script.spans), 4), np.int64), self.stock
        stock.make_room(0, 3)
        own = stock.arena.open(stock.arena.plant())
        for (start, stop), line in zip(script.spans, lines, strict=True):
            self._enter(own, script.text[:start])
            self._seat(own, start, script.tenant)
            self._respond(script, start, stop, line, curve)
            self._leave(script, start, stop)
        stock.arena.fell(own)
        return lines

    def _seat(self, own: int, prompt: int, tenant: str) -> None:
        self._book[0] = own, NONE, NONE, prompt
        if self.kept != 0:
            self.stock.make_room(0, 2)
            self._book[0, 1:3] = self.stock.keep(self._name(), tenant), self.stock.hold(tenant)

    def _respond(self, script: Script, start: int, stop: int, line: np.ndarray, curve: np.ndarray) -> None:
        text = script.text[None]

        def advance(at: int, steps: int) -> int:
            while True:
                at, state = walk_suffix(
                    *self.stock.arena.arrays, self._book, text, at, stop, steps, *self.rule, self.limit, self.most,
                    line, curve,
                )  # fmt: skip
                if state == DONE:
                    return int(at)
                assert state == NO_ROOM, state  # token ids were checked when they were read
                self.stock.make_room(GROWTH, 2)

        self.clock.walk(advance, start + 1, stop)
        self.clock.steps += int(line[0])

    def _leave(self, script: Script, start: int, stop: int) -> None:
        """Enter what the last step emitted, then let the response be one among the others."""
        shared = int(self._book[0, 1])
        if shared >= 0:
            self._enter(shared, script.text[start:stop])
            self.stock.release(script.tenant)

    def _enter(self, sequence: int, text: np.ndarray) -> None:
        """Append what a sequence lacks of a text."""
        known = int(self.stock.arena.arrays.sequences[sequence, LENGTH])
        self.stock.enter(sequence, text[known:])

    def _name(self) -> str:
        self._names += 1
        return str(self._names)

    def _gone(self, request: str) -> None:
        """A response was dropped to make room; it was never the one that runs."""


def walker_for(config: SpeculativeConfig, limit: int = NO_LIMIT) -> NgramWalker | SuffixWalker:
    """The walker that a look-up's card names."""
    found: NgramWalker | SuffixWalker = load(LOOK_UPS[config.method].walker)(config, limit)
    return found
