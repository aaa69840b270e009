"""The model-free methods, set up to replay whole conversations with one index per conversation that grows with it.

The prompt of a turn begins with the text up to the end of the turn before it, so nothing is indexed twice; an engine
that indexes every turn from scratch drafts the same.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns

import numpy as np

from augury.config.speculative import SpeculativeConfig
from augury.index.suffix_arena import Arena
from augury.index.suffix_batch import DONE, NO_ROOM
from augury.index.suffix_layout import LENGTH, NONE
from augury.index.suffix_rule import SuffixRule
from augury.index.suffix_stock import Stock
from augury.methods.registry import LOOK_UPS, load
from augury.tools.replay.tokens import Script
from augury.tools.replay.walk import walk_ngram, walk_suffix

NO_LIMIT = 1 << 40
ALL = 1 << 60  # steps
TIMED = 32  # one step in this many is timed by itself
GROWTH = 4096  # tokens by which a full index grows


class DraftClock:
    """Measures drafting time on a sample of single steps, each called as an engine calls it."""

    def __init__(self) -> None:
        self.steps = 0
        self.samples: list[int] = []  # nanoseconds

    def walk(self, advance: Callable[[int, int], int], start: int, stop: int) -> None:
        """Run advance(from, steps) up to `stop`, all at once, or step by step when a sample is due."""
        if len(self.samples) * TIMED > self.steps:
            start = advance(start, ALL) if start < stop else stop
        while start < stop:
            before = perf_counter_ns()
            start = advance(start, 1)
            self.samples.append(perf_counter_ns() - before)


class Walker:
    """Replays conversations with one method; subclasses implement the index."""

    kept_free = 0  # positions at the end of a text that no draft fills
    memory: tuple[int, int]  # the most bytes the index has held, and the tokens in it then

    def __init__(self, most: int, limit: int) -> None:
        """Set up for drafts of at most `most` nodes and texts of at most `limit` tokens."""
        self.most, self.limit, self.clock = most, limit, DraftClock()

    def walk(self, script: Script, curve: np.ndarray) -> np.ndarray:
        """Decode every response of a conversation; returns counts, int64 [responses, 4], and adds to `curve`."""
        lines, text = np.zeros((len(script.spans), 4), np.int64), script.text[None]
        self._open(script)
        for (start, stop), line in zip(script.spans, lines, strict=True):

            def advance(at: int, steps: int, stop: int = stop, line: np.ndarray = line) -> int:
                return self._advance(text, at, stop, steps, line, curve)

            self._begin(script, start)
            self.clock.walk(advance, start + 1, stop)
            self.clock.steps += int(line[0])
            self._end(script, start, stop)
        self._close()
        return lines

    def _open(self, script: Script) -> None:
        """Prepare for a conversation."""

    def _begin(self, script: Script, start: int) -> None:
        """Prepare for the response that starts at `start`."""

    def _advance(self, text: np.ndarray, at: int, stop: int, steps: int, line: np.ndarray, curve: np.ndarray) -> int:
        """Decode from `at` in at most `steps` steps; returns the number of tokens known then."""
        raise NotImplementedError

    def _end(self, script: Script, start: int, stop: int) -> None:
        """Keep what a response contributes to later ones."""

    def _close(self) -> None:
        """Drop what belongs only to the conversation."""


class NgramWalker(Walker):
    """N-gram prompt lookup, also for ngram_gpu, which drafts the same tokens."""

    kept_free = 1

    def __init__(self, config: SpeculativeConfig, limit: int = NO_LIMIT) -> None:
        """Take the n-gram bounds, the match rule and K from the configuration."""
        super().__init__(config.num_speculative_tokens, limit)
        assert config.prompt_lookup_min and config.prompt_lookup_max  # `resolve` fills both in
        self.bounds = config.prompt_lookup_min, config.prompt_lookup_max, config.prompt_lookup_match == "latest"
        self._arena, self._state = np.empty(0, np.int32), np.zeros((1, 5), np.int64)
        self.memory = 0, 0

    def _open(self, script: Script) -> None:
        size = len(script.text)
        capacity = 1 << max(6, (2 * size - 1).bit_length())
        room = capacity * (self.bounds[1] - self.bounds[0] + 1)
        if room > len(self._arena):
            self._arena, self.memory = np.empty(room, np.int32), (4 * room, size)
        self._state[0] = 0, capacity, 0, 0, 0

    def _advance(self, text: np.ndarray, at: int, stop: int, steps: int, line: np.ndarray, curve: np.ndarray) -> int:
        index = self._arena, self._state, *self.bounds
        return int(walk_ngram(index, text, at, stop, steps, self.limit, self.most, line, curve))


class SuffixWalker(Walker):
    """Suffix decoding: a tree over the conversation, and per tenant a tree over all earlier responses."""

    def __init__(self, config: SpeculativeConfig, limit: int = NO_LIMIT) -> None:
        """Take the tree depth, the drafting rule and K from the configuration."""
        tree = config.tree
        super().__init__(tree.max_nodes if tree else config.num_speculative_tokens, limit)
        factor, least = config.suffix_decoding_max_spec_factor, config.suffix_decoding_min_token_prob
        self.rule = tuple(SuffixRule(factor, 0.0, least, tree.top_k if tree else 1).checked())
        self.kept = config.suffix_decoding_max_cached_requests
        # A response dropped to make room is never the running one, so there is nothing to do.
        self.stock = Stock(Arena(config.suffix_decoding_max_tree_depth, None), self.kept, lambda request: None)
        self._book = np.full((1, 4), NONE, np.int64)
        self._names = 0

    @property
    def memory(self) -> tuple[int, int]:  # type: ignore[override]
        """Bytes allocated, including spare capacity, and tokens stored."""
        return self.stock.arena.bytes, self.stock.arena.tokens

    def preload(self, responses: list[tuple[str, str, np.ndarray]]) -> None:
        """Add the responses of a saved cache: (tenant, name, tokens)."""
        for tenant, _, tokens in responses:
            self.stock.add(self._name(), tokens.astype(np.int64), tenant)

    def _open(self, script: Script) -> None:
        self.stock.make_room(0, 3)
        self._own = self.stock.arena.open(self.stock.arena.plant())

    def _begin(self, script: Script, start: int) -> None:
        self._enter(self._own, script.text[:start])
        self._book[0] = self._own, NONE, NONE, start
        if self.kept != 0:
            self.stock.make_room(0, 2)
            self._book[0, 1:3] = self.stock.keep(self._name(), script.tenant), self.stock.hold(script.tenant)

    def _advance(self, text: np.ndarray, at: int, stop: int, steps: int, line: np.ndarray, curve: np.ndarray) -> int:
        while True:
            index = *self.stock.arena.arrays, self._book
            at, state = walk_suffix(index, self.rule, text, at, stop, steps, self.limit, self.most, line, curve)
            if state == DONE:
                return int(at)
            assert state == NO_ROOM, state  # token ids were checked when they were read
            self.stock.make_room(GROWTH, 2)

    def _end(self, script: Script, start: int, stop: int) -> None:
        """Index what the last step emitted, then release the response into the tenant's cache."""
        shared = int(self._book[0, 1])
        if shared >= 0:
            self._enter(shared, script.text[start:stop])
            self.stock.release(script.tenant)

    def _close(self) -> None:
        self.stock.arena.fell(self._own)

    def _enter(self, sequence: int, text: np.ndarray) -> None:
        """Append the part of a text that a sequence does not have yet."""
        known = int(self.stock.arena.arrays.sequences[sequence, LENGTH])
        self.stock.enter(sequence, text[known:])

    def _name(self) -> str:
        self._names += 1
        return str(self._names)


def walker_for(config: SpeculativeConfig, limit: int = NO_LIMIT) -> Walker:
    """The walker that the look-up method's card names."""
    found: Walker = load(LOOK_UPS[config.method].walker)(config, limit)
    return found
