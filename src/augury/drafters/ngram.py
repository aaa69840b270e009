"""Prompt lookup: draft what followed the last n tokens where they stood before."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from augury.config.speculative import SpeculativeConfig
from augury.drafters.base import DrafterSetup
from augury.drafters.text import TextDrafter
from augury.index.ngram import NgramIndex
from augury.verify.tree import Draft, chain_parents


class NgramDrafter(TextDrafter):
    """Finds repeated n-grams on the host, in an index that grows with each slot's text."""

    name = "ngram"
    looks_up = True

    def __init__(self, config: SpeculativeConfig, setup: DrafterSetup) -> None:
        """Take the lookup bounds, the match rule and the length of drafts from the configuration."""
        assert config.prompt_lookup_min and config.prompt_lookup_max  # `resolve` fills both in
        latest = config.prompt_lookup_match == "latest"
        low, high = (min(n, setup.max_model_len) for n in (config.prompt_lookup_min, config.prompt_lookup_max))
        self.index = NgramIndex(low, high, latest)
        self.nodes = config.num_speculative_tokens
        self._parents = chain_parents(1, self.nodes).numpy()
        self.max_model_len = setup.max_model_len

    def draft(self, slots: Tensor, lengths: Tensor, history: Tensor, budget: Tensor) -> Draft:
        """A chain for each slot, empty where nothing repeats."""
        groups, device = len(slots), history.device
        rows = slots
        if device.type != "cpu":
            # Only what is known of the slots at hand crosses over.
            slots, lengths, budget = slots.cpu(), lengths.cpu(), budget.cpu()
            history = history[rows, : int(lengths.max()) if groups else 0].cpu()
            rows = torch.arange(groups)
        tokens, counts = np.zeros((groups, self.nodes), np.int64), np.zeros(groups, np.int64)
        self.index.propose(
            history.numpy(),
            rows.numpy(),
            slots.numpy(),
            lengths.numpy(),
            budget.numpy(),
            self.max_model_len,
            tokens,
            counts,
        )
        made = [torch.from_numpy(part) for part in (tokens, self._parents.repeat(groups, axis=0), counts)]
        if device.type != "cpu":
            made = [part.to(device) for part in made]
        return Draft(made[0], made[1], made[2])

    def warm_up(self, device: torch.device) -> None:
        """Compile the index."""
        self.rehearse(device)

    def reset(self, slot: int) -> None:
        """Forget the text of a request that has left."""
        self.index.reset(slot)
