"""Prompt lookup: draft what followed the last n tokens where they stood before."""

from __future__ import annotations

import torch
from torch import Tensor

from augury.config.speculative import SpeculativeConfig
from augury.index.ngram import longest_matches
from augury.propose.base import Needs
from augury.verify.sampling import Outcome
from augury.verify.tree import Draft, chain_parents


class NgramDrafter:
    """Finds repeated n-grams on the host; keeps nothing between steps."""

    name = "ngram"
    needs = Needs()
    branching = False

    def __init__(self, config: SpeculativeConfig, max_model_len: int) -> None:
        """Take the lookup bounds and the length of drafts from the configuration."""
        assert config.prompt_lookup_min and config.prompt_lookup_max  # SpeculativeConfig.parse fills both in
        self.min_n, self.max_n = config.prompt_lookup_min, config.prompt_lookup_max
        self.nodes = config.num_speculative_tokens
        self.max_model_len = max_model_len

    def propose(self, slots: Tensor, lengths: Tensor, history: Tensor, budget: Tensor) -> Draft:
        """A chain for each slot, empty where nothing repeats."""
        groups, device = len(slots), history.device
        rows, lengths = slots.cpu(), lengths.cpu()
        if device.type != "cpu":
            # Only what is known of the slots at hand crosses over.
            history = history[slots, : int(lengths.max()) if groups else 0].cpu()
            rows = torch.arange(groups)
        tokens = torch.zeros(groups, self.nodes, dtype=torch.int64)
        counts = torch.zeros(groups, dtype=torch.int64)
        longest_matches(
            history.numpy(), rows.numpy(), lengths.numpy(), budget.cpu().numpy(),
            self.min_n, self.max_n, self.max_model_len, tokens.numpy(), counts.numpy(),
        )  # fmt: skip
        return Draft(tokens.to(device), chain_parents(groups, self.nodes, device), counts.to(device))

    def observe(self, outcome: Outcome) -> None:
        """Nothing to learn."""

    def reset(self, slot: int) -> None:
        """Nothing to forget."""
