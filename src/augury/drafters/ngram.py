"""Prompt lookup: find the last n tokens earlier in the text, and draft what followed them there."""

from __future__ import annotations

import numpy as np
import torch

from augury.config.speculative import SpeculativeConfig
from augury.drafters.base import DrafterSetup
from augury.drafters.look_up import Guesses, LookUpDrafter
from augury.index.ngram import NgramIndex
from augury.verify.tree import chain_parents


class NgramDrafter(LookUpDrafter):
    """Finds repeated n-grams on the host, in an index that grows with each slot's text."""

    name = "ngram"

    def __init__(self, config: SpeculativeConfig, setup: DrafterSetup) -> None:
        """Take the lookup bounds, the match rule and the length of drafts from the configuration."""
        assert config.prompt_lookup_min and config.prompt_lookup_max  # `resolve` fills both in
        latest = config.prompt_lookup_match == "latest"
        low, high = (min(n, setup.max_model_len) for n in (config.prompt_lookup_min, config.prompt_lookup_max))
        self.index = NgramIndex(low, high, latest)
        self.nodes = config.num_speculative_tokens
        self._parents = chain_parents(1, self.nodes).numpy()
        self.max_model_len = setup.max_model_len

    def guess(
        self, texts: np.ndarray, rows: np.ndarray, slots: np.ndarray, lengths: np.ndarray, budget: np.ndarray
    ) -> Guesses:
        """A chain for each slot, empty where nothing repeats."""
        tokens, counts = np.zeros((len(slots), self.nodes), np.int64), np.zeros(len(slots), np.int64)
        self.index.propose(texts, rows, slots, lengths, budget, self.max_model_len, tokens, counts)
        return Guesses(tokens, self._parents.repeat(len(slots), axis=0), counts)

    def warm_up(self, device: torch.device) -> None:
        """Compile the index."""
        self.rehearse(device)

    def reset(self, slot: int) -> None:
        """Forget the text of a finished request."""
        self.index.reset(slot)
