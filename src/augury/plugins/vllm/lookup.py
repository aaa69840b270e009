"""Our look-up drafters as vLLM's custom class: `{"model": "augury.plugins.vllm.lookup.Ngram", ...}`.

vLLM's own n-gram drafter scans the whole text of every request at every step; these keep an index that grows by the
new tokens alone. Custom classes run on vLLM's V1 runner, which turns async scheduling off for them.
"""

from __future__ import annotations

import logging
import os
from secrets import token_hex
from typing import Any
from weakref import finalize

import numpy as np

from augury.index.ngram import NgramIndex
from augury.index.store import load, save
from augury.index.suffix import SuffixCache
from augury.index.suffix_rule import SuffixRule
from augury.plugins.vllm.seats import Seats

logger = logging.getLogger("vllm.augury")
NGRAM = (2, 5)  # tokens matched, where the configuration does not say
SUFFIX_FILE = "AUGURY_SUFFIX_CACHE"  # where a suffix cache is read at start and left at the end


class _Lookup:
    """Rows in, drafts out; subclasses do the look-up."""

    def __init__(self, vllm_config: Any) -> None:
        config = vllm_config.speculative_config
        self.most = int(config.num_speculative_tokens)
        self.limit = int(vllm_config.model_config.max_model_len)
        self.faulty = False
        # Twice as many as run at once, so that preempted requests are recognised when they resume.
        self.seats = Seats(2 * int(vllm_config.scheduler_config.max_num_seqs) + 1, self._left)
        logger.warning(
            "%s drafts on vLLM's V1 runner, which turns async scheduling off for it; compare with plain decoding "
            "under your own load before you keep it (`augury bench serve`). The first start on a machine compiles its "
            "index, which can take a minute or more",
            type(self).__name__,
        )
        self._rehearse(int(vllm_config.scheduler_config.max_num_seqs))

    def load_model(self, *_: Any, **__: Any) -> None:
        """Do nothing: there is no model."""

    def propose(
        self,
        sampled_token_ids: list[list[int]],
        num_tokens_no_spec: np.ndarray,
        token_ids_cpu: np.ndarray,
        slot_mappings: Any = None,
    ) -> list[list[int]]:
        """Draft tokens for each row; none while its prompt is still in prefill, or at the length limit."""
        drafts: list[list[int]] = [[] for _ in sampled_token_ids]
        if self.faulty:
            return drafts
        try:
            self._propose(drafts, sampled_token_ids, num_tokens_no_spec, token_ids_cpu)
        except Exception:  # a worker that raises fails every request, and none of them needs a draft
            self.faulty = True
            logger.exception("%s stops drafting after a fault; requests go on without drafts", type(self).__name__)
            return [[] for _ in sampled_token_ids]
        return drafts

    def _propose(
        self, drafts: list[list[int]], sampled: list[list[int]], lengths: np.ndarray, texts: np.ndarray
    ) -> None:
        rows = [row for row, new in enumerate(sampled) if new and lengths[row] < self.limit]
        if not rows:
            return
        now = [int(lengths[row]) for row in rows]
        before = [length - len(sampled[row]) for row, length in zip(rows, now, strict=True)]
        seats = self.seats.find(texts, rows, before, now)
        tokens, counts = self._draft(texts, rows, seats, before, now)
        for row, line, count in zip(rows, tokens.tolist(), counts.tolist(), strict=True):
            drafts[row] = line[:count]

    def _rehearse(self, most: int) -> None:
        """Compile the index for vLLM's type of array before a request waits for it, and forget the text."""
        self._propose([[]], [[1]], np.array([4], np.int32), np.array([[1, 2, 1, 1, 0, 0]], np.int32))
        self._left(0, keep=False)
        self.seats = Seats(2 * most + 1, self._left)

    def _draft(
        self, texts: np.ndarray, rows: list[int], seats: list[tuple[int, bool]], before: list[int], now: list[int]
    ) -> tuple[np.ndarray, np.ndarray]:
        raise NotImplementedError

    def _left(self, seat: int, keep: bool = True) -> None:
        raise NotImplementedError


class Ngram(_Lookup):
    """The same drafts as vLLM's `ngram`, from an index; takes `prompt_lookup_min` and `prompt_lookup_max`."""

    latest = False  # of several matches vLLM takes the first

    def __init__(self, vllm_config: Any) -> None:
        """Take the bounds from the configuration."""
        config = vllm_config.speculative_config
        low, high = config.prompt_lookup_min, config.prompt_lookup_max
        low, high = (low or high or NGRAM[0]), (high or low or NGRAM[1])
        self.index = NgramIndex(low, high, self.latest)
        super().__init__(vllm_config)

    def _draft(
        self, texts: np.ndarray, rows: list[int], seats: list[tuple[int, bool]], before: list[int], now: list[int]
    ) -> tuple[np.ndarray, np.ndarray]:
        tokens, counts = np.zeros((len(rows), self.most), np.int64), np.zeros(len(rows), np.int64)
        places = np.array([seat for seat, _ in seats])
        budget = np.full(len(rows), self.most)
        self.index.propose(texts, np.array(rows), places, np.array(now), budget, self.limit, tokens, counts)
        return tokens, counts

    def _left(self, seat: int, keep: bool = True) -> None:
        self.index.reset(seat)


class LatestNgram(Ngram):
    """Like `Ngram`, but of several matches the last one counts: better where a text repeats itself with changes."""

    latest = True


class Suffix(_Lookup):
    """Suffix decoding without Arctic's package, over this text and earlier answers; takes vLLM's `suffix_decoding_*`.

    Answers are shared between all requests, as in vLLM's own suffix drafter: a custom class is not told whose request
    it drafts for. `suffix_decoding_max_cached_requests: 0` shares nothing.
    """

    def __init__(self, vllm_config: Any) -> None:
        """Take depth, limits and rule from the configuration, earlier answers from the file that is named."""
        config = vllm_config.speculative_config
        self.rule = SuffixRule(
            factor=config.suffix_decoding_max_spec_factor, min_prob=config.suffix_decoding_min_token_prob, width=1
        ).checked()
        limits = config.suffix_decoding_max_tree_depth, config.suffix_decoding_max_cached_requests
        self.cache, path = _earlier(os.environ.get(SUFFIX_FILE), *limits)
        # Runs once: when it is called, when the drafter is garbage-collected, or when the interpreter ends.
        self.keep = finalize(self, _leave, self.cache, path) if path else (lambda: None)
        self._started: dict[int, tuple[int, str]] = {}  # seat: the cache's handle, the request's name there
        self._prefix, self._names = token_hex(4), 0  # names must not clash with those of the file
        super().__init__(vllm_config)

    def _draft(
        self, texts: np.ndarray, rows: list[int], seats: list[tuple[int, bool]], before: list[int], now: list[int]
    ) -> tuple[np.ndarray, np.ndarray]:
        for (seat, new), row, length in zip(seats, rows, before, strict=True):
            if new:
                self._names += 1
                name = f"{self._prefix}-{self._names}"
                self._started[seat] = self.cache.start(name, texts[row, :length]), name
        tokens, counts = np.zeros((len(rows), self.most), np.int64), np.zeros(len(rows), np.int64)
        handles = np.array([self._started[seat][0] for seat, _ in seats])
        parents = np.tile(np.arange(-1, self.most - 1), (len(rows), 1))
        budget = np.full(len(rows), self.most)
        self.cache.step(
            handles, texts, np.array(rows), np.array(now), budget, self.limit, self.rule, tokens, parents, counts
        )
        return tokens, counts

    def _left(self, seat: int, keep: bool = True) -> None:
        if seat in self._started:
            name = self._started.pop(seat)[1]
            self.cache.stop(name)
            if not keep and name in self.cache:
                self.cache.evict(name)


def _earlier(path: str | None, depth: int, most: int) -> tuple[SuffixCache, str | None]:
    """A cache with the answers of a file, and where to save it in the end; an unreadable file is not overwritten."""
    if not path:
        return SuffixCache(depth, most), None
    path = os.path.abspath(path)
    try:
        return (load(path, depth, most) if os.path.exists(path) else SuffixCache(depth, most)), path
    except (OSError, ValueError) as error:
        logger.warning("%s is left alone and no answers are kept: %s", SUFFIX_FILE, error)
        return SuffixCache(depth, most), None


def _leave(cache: SuffixCache, path: str) -> None:
    try:
        save(cache, path)
    except OSError as error:  # the server is shutting down, and needs no traceback of ours
        logger.warning("the answers of this run are not kept: %s", error)
