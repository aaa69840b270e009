"""Suffix decoding: draft what followed the same words before, in this text or in earlier answers."""

from __future__ import annotations

from secrets import token_hex

import numpy as np
import torch
from torch import Tensor

from augury.config.errors import ConfigError
from augury.config.speculative import SpeculativeConfig
from augury.index.store import SuffixFileError, load
from augury.index.suffix import Rule, SuffixCache
from augury.propose.base import Setting
from augury.propose.text import TextDrafter
from augury.verify.tree import Draft, chain_parents

NOBODY = -1


class SuffixDrafter(TextDrafter):
    """Keeps a suffix cache in step with the slots: a request starts when its slot is first seen and stops at reset."""

    name = "suffix"

    def __init__(self, config: SpeculativeConfig, setting: Setting, cache: SuffixCache | None = None) -> None:
        """Take depth, limits and rule from the configuration; `cache` may be one loaded from disk."""
        tree = config.tree
        self.branching = tree is not None
        self.nodes = config.max_nodes
        self.cache = cache or _cache(config)
        self.rule = Rule(
            factor=config.suffix_decoding_max_spec_factor,
            min_prob=config.suffix_decoding_min_token_prob,
            width=1 if tree is None else tree.top_k,
        ).checked()
        self.max_model_len = setting.max_model_len
        self._handles = np.full(0, NOBODY, np.int64)  # slot -> the cache's handle
        self._requests: dict[int, str] = {}  # slot -> name in the cache
        self._admitted: dict[int, tuple[int, str, str]] = {}  # slot -> what `admit` said
        self._prefix = token_hex(4)  # names must not meet those of a cache loaded from disk

    def admit(self, slot: int, prompt_len: int, cached: int, tenant: str, request: str) -> None:
        """Note how long a slot's prompt is and whose; an answer kept under the same name is replaced."""
        name = f"{self._prefix}-{request}"
        for other in [seat for seat, held in self._requests.items() if held == name]:
            self.reset(other)  # it was put off its slot, and nobody told us
        self.reset(slot)
        self._admitted[slot] = prompt_len, tenant, name

    def draft(self, slots: Tensor, lengths: Tensor, history: Tensor, budget: Tensor) -> Draft:
        """A path or a tree for each slot, empty where nothing is found."""
        groups, device = len(slots), history.device
        rows = seats = slots.cpu().numpy()
        known = lengths.cpu().numpy().copy()
        if device.type != "cpu":
            # Only what is known of the slots at hand crosses over.
            history = history[slots, : int(known.max()) if groups else 0].cpu()
            rows = np.arange(groups)
        text = history.numpy()
        tokens = torch.zeros(groups, self.nodes, dtype=torch.int64)
        parents, counts = chain_parents(groups, self.nodes), torch.zeros(groups, dtype=torch.int64)
        handles = self._seat(seats, rows, known, text)
        self.cache.step(
            handles, text, rows, known, budget.cpu().numpy(), self.max_model_len, self.rule,
            tokens.numpy(), parents.numpy(), counts.numpy(),
        )  # fmt: skip
        return Draft(tokens.to(device), parents.to(device), counts.to(device))

    def reset(self, slot: int) -> None:
        """Forget a slot; the response of its request stays in the cache."""
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
                known[g] = 0  # a prompt still being read, or nobody's slot
            else:
                handles[g] = self._handles[seats[g]] = self.cache.start(name, text[rows[g], :prompt_len], tenant)
                self._requests[int(seats[g])] = name
        return handles


def _cache(config: SpeculativeConfig) -> SuffixCache:
    """An empty cache, or the one saved at `suffix_decoding_cache_path`."""
    limits = (
        config.suffix_decoding_max_tree_depth,
        config.suffix_decoding_max_cached_requests,
        config.suffix_decoding_max_cached_bytes,
    )
    if config.suffix_decoding_cache_path is None:
        return SuffixCache(*limits)
    try:
        return load(config.suffix_decoding_cache_path, *limits)
    except (OSError, SuffixFileError) as error:
        raise ConfigError(f"speculative_config.suffix_decoding_cache_path: {error}") from None
