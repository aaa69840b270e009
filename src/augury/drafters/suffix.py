"""Suffix decoding: draft what followed the same tokens before, in this text or in earlier answers."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from secrets import token_hex
from weakref import finalize

import numpy as np
import torch

from augury.config.errors import ConfigError
from augury.config.speculative import SpeculativeConfig
from augury.drafters.base import DrafterSetup
from augury.drafters.look_up import Guesses, LookUpDrafter
from augury.drafters.text import REHEARSAL
from augury.index.store import SuffixFileError, load, save
from augury.index.suffix import SuffixCache
from augury.index.suffix_rule import SuffixRule
from augury.verify.tree import chain_parents

NOBODY = -1
logger = logging.getLogger("augury")


class SuffixDrafter(LookUpDrafter):
    """Keeps a suffix cache in step with the slots: a request starts when its slot is first seen and stops at reset."""

    name = "suffix"

    def __init__(self, config: SpeculativeConfig, setup: DrafterSetup, cache: SuffixCache | None = None) -> None:
        """Take depth, limits and rule from the configuration; `cache` may be one loaded from disk."""
        tree = config.tree
        self.branching = tree is not None
        self.nodes = config.max_nodes
        self._parents = chain_parents(1, self.nodes).numpy()
        self.cache = cache or _cache(config)
        self.rule = SuffixRule(
            factor=config.suffix_decoding_max_spec_factor,
            min_prob=config.suffix_decoding_min_token_prob,
            width=1 if tree is None else tree.top_k,
        ).checked()
        self.max_model_len = setup.max_model_len
        self._handles = np.full(0, NOBODY, np.int64)  # slot -> the cache's handle
        self._requests: dict[int, str] = {}  # slot -> name in the cache
        self._admitted: dict[int, tuple[int, str, str]] = {}  # slot -> what `admit` said
        self._prefix = token_hex(4)  # names must not meet those of a cache loaded from disk
        path = config.suffix_decoding_save_path
        # Once: at `close`, when the engine is let go, or when the interpreter ends, whichever comes first.
        self._leave = finalize(self, _save, self.cache, os.path.abspath(path)) if path is not None else None

    def admit(self, slot: int, prompt_len: int, cached: int, tenant: str, request: str) -> None:
        """Note how long a slot's prompt is and whose; an answer kept under the same name is replaced."""
        name = f"{self._prefix}-{request}"
        for other in [seat for seat, held in self._requests.items() if held == name]:
            self.reset(other)  # its request lost the slot without a reset
        self.reset(slot)
        self._admitted[slot] = prompt_len, tenant, name

    def warm_up(self, device: torch.device) -> None:
        """Compile the index, and leave no trace in it."""
        self.rehearse(device)
        if (name := f"{self._prefix}-{REHEARSAL}") in self.cache:
            self.cache.evict(name)

    def guess(
        self, texts: np.ndarray, rows: np.ndarray, slots: np.ndarray, lengths: np.ndarray, budget: np.ndarray
    ) -> Guesses:
        """A path or a tree for each slot, empty where nothing is found."""
        groups, known = len(slots), lengths.copy()
        tokens, parents = np.zeros((groups, self.nodes), np.int64), self._parents.repeat(groups, axis=0)
        counts = np.zeros(groups, np.int64)
        handles = self._seat(slots, rows, known, texts)
        self.cache.step(handles, texts, rows, known, budget, self.max_model_len, self.rule, tokens, parents, counts)
        return Guesses(tokens, parents, counts)

    def close(self) -> None:
        """Save the cache, if that was asked for."""
        if self._leave is not None:
            self._leave()

    def reset(self, slot: int) -> None:
        """Forget a slot; its request's response stays in the cache."""
        self._admitted.pop(slot, None)
        self._stop(slot)

    def _stop(self, slot: int) -> None:
        if slot in self._requests:
            self.cache.stop(self._requests.pop(slot))
            self._handles[slot] = NOBODY

    def _seat(self, seats: np.ndarray, rows: np.ndarray, known: np.ndarray, text: np.ndarray) -> np.ndarray:
        """The handle of every group; requests that are new, or whose text has shrunk, are started."""
        highest = int(seats.max(initial=-1))
        if highest >= len(self._handles):
            more = np.full(highest + 1 - len(self._handles), NOBODY, np.int64)
            self._handles = np.concatenate([self._handles, more])
        handles: np.ndarray = self._handles[seats]
        for g in np.flatnonzero((known > 0) & (known < self.cache.lengths(handles))).tolist():
            self._stop(int(seats[g]))
            handles[g] = NOBODY
        for g in np.flatnonzero((known > 0) & (handles == NOBODY)).tolist():
            prompt_len, tenant, name = self._admitted.get(int(seats[g]), (0, "", ""))
            if known[g] < prompt_len or not name:
                known[g] = 0  # a prompt still being read, or an empty slot
            else:
                handles[g] = self._handles[seats[g]] = self.cache.start(name, text[rows[g], :prompt_len], tenant)
                self._requests[int(seats[g])] = name
        return handles


def _cache(config: SpeculativeConfig) -> SuffixCache:
    """The cache an earlier engine left at `suffix_decoding_save_path`, else that of `.._cache_path`, else a new one."""
    limits = (
        config.suffix_decoding_max_tree_depth,
        config.suffix_decoding_max_cached_requests,
        config.suffix_decoding_max_cached_bytes,
    )
    left = config.suffix_decoding_save_path
    if left is not None and not os.access(Path(left).parent, os.W_OK):  # found out now, not when all has been said
        raise ConfigError(f"speculative_config.suffix_decoding_save_path: {Path(left).parent} cannot be written to.")
    if left is not None and Path(left).is_dir():
        raise ConfigError(f"speculative_config.suffix_decoding_save_path: {left} is a directory; name a file in it.")
    resumed = left is not None and os.path.lexists(left)
    path, key = (left, "save_path") if resumed else (config.suffix_decoding_cache_path, "cache_path")
    if path is None:
        return SuffixCache(*limits)
    try:
        return load(path, *limits)
    except (OSError, SuffixFileError) as error:
        raise ConfigError(f"speculative_config.suffix_decoding_{key}: {error}") from None


def _save(cache: SuffixCache, path: str) -> None:
    """Leave the cache for the next engine; errors are logged, since no caller is left."""
    if not cache.cached:
        return  # an engine that never ran must not hide what the next one would start from
    try:
        save(cache, path)
    except OSError as error:
        logger.error("the suffix cache was not saved in %s: %s", path, error.strerror or error)
