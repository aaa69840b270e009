"""DFlash: one pass fills a block of masked positions; a chain of their likeliest tokens, or a tree over them.

DFlash2 checkpoints come under the same name; for them, dflash2.py does what follows the pass.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from augury.config.speculative import SpeculativeConfig
from augury.drafters.base import DrafterSetup, DraftInput
from augury.drafters.block import BlockDrafter, block_rows
from augury.drafters.checkpoint import find_drafter
from augury.drafters.dflash2 import SelectorWalk
from augury.drafters.medusa import LiteralTree, MarginalTree
from augury.model.heads.dflash2 import DFlash2, load_dflash
from augury.model.load import choose_head_dtype
from augury.verify.tree import Draft


class DFlashDrafter(BlockDrafter):
    """Reads the target's streams of accepted tokens, then fills the block after them."""

    name = "dflash"

    def __init__(self, config: SpeculativeConfig, setup: DrafterSetup) -> None:
        """Load the drafter next to its target."""
        dtype = choose_head_dtype(setup.dtype, setup.target)
        head = load_dflash(find_drafter(config, setup.dummy), setup.target, dtype, setup.max_model_len, setup.dummy)
        super().__init__(config, setup, head)
        self._walk = SelectorWalk(head, config, self.chain, self.vocab) if isinstance(head, DFlash2) else None
        self._tree = None if self._walk is not None else self._free_tree(config)

    def propose(self, inputs: DraftInput) -> Draft:
        """Read the new context of every group, fill a block for those that may draft."""
        budget, masks, steps = self.begin(inputs)
        if steps == 0:
            return Draft.empty(len(budget), self.nodes, self.device)
        rows, masked = block_rows(inputs, masks, steps, self.head.mask_token or 0)
        if self._walk is not None:
            return self._walk(inputs, self.head.states(rows, masked).view(len(budget), steps, -1), budget)
        logits = self.head.fill(rows, masked)
        lines = logits.view(len(budget), steps, self.vocab)
        return self.chain.at_once(inputs, lines, budget) if self._tree is None else self._grown(lines, masks, budget)

    def _free_tree(self, config: SpeculativeConfig) -> LiteralTree | MarginalTree | None:
        """A tree over positions that are predicted independently of each other; None if chains are drafted."""
        if self.paths:
            return LiteralTree(self.paths, self.vocab, self.device)
        if config.tree:
            return MarginalTree(self.nodes, min(config.tree.top_k, self.vocab), self.depth, self.device)
        return None

    def _grown(self, lines: Tensor, masks: Tensor, budget: Tensor) -> Draft:
        assert self._tree is not None
        # A depth without a mask has no distribution: a uniform one comes last wherever something better is left.
        lines = pad(lines, (0, 0, 0, self.depth - lines.shape[1]))
        depths = torch.arange(self.depth, device=self.device)
        lines = torch.where((depths < masks[:, None])[:, :, None], lines, 0.0)
        tokens, parents = self._tree.grow(list(lines.unbind(1)))
        spare = (0, self.nodes - tokens.shape[1])
        return Draft(pad(tokens, spare), pad(parents, spare, value=-1), budget.clamp(max=tokens.shape[1]))
