"""Drafters that start from the hidden state that the newest token was drawn from and keep nothing between steps."""

from __future__ import annotations

import torch
from torch import Tensor

from augury.config.speculative import SpeculativeConfig
from augury.config.tree_literal import Path, read_tree
from augury.drafters.base import Drafter, DrafterSetup, DraftInput, Needs
from augury.model.target import NORMED


class StatelessDrafter(Drafter):
    """What Medusa's heads and MLP speculators share: the shape of drafts, and the longest text."""

    needs = Needs((NORMED,))
    on_host = False

    def __init__(self, config: SpeculativeConfig, setup: DrafterSetup) -> None:
        """Take the shape of drafts from the configuration."""
        self.nodes = config.max_nodes
        self.longest = config.max_model_len or setup.max_model_len
        self.branching = config.drafts_trees
        self.paths = written_paths(config)
        self.depth = max(map(len, self.paths)) if self.paths else config.num_speculative_tokens

    def affordable(self, inputs: DraftInput) -> Tensor:
        """Nodes each group may draft, int64 [G]."""
        return torch.minimum(inputs.budget, self.longest - inputs.lengths).clamp(min=0, max=self.nodes)


def written_paths(config: SpeculativeConfig) -> list[Path]:
    """The paths of speculative_token_tree, the best ranks first, so that a tree cut to a budget keeps those."""
    literal = config.speculative_token_tree
    return sorted(read_tree(literal), key=lambda path: (sum(path), len(path), path)) if literal else []
