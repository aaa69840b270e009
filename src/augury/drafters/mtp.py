"""`mtp`: see recurrent.py; targets with several layers: see mtp_layers.py."""

from __future__ import annotations

from torch import Tensor

from augury.config.speculative import SpeculativeConfig
from augury.config.tree_literal import read_tree
from augury.drafters.base import DrafterSetup
from augury.drafters.checkpoint import find_drafter
from augury.drafters.mtp_layers import Kept, Layers, draft_chain, draft_tree
from augury.drafters.recurrent import HeadInput, RecurrentDrafter
from augury.model.heads.mtp import MtpHead
from augury.model.load import choose_head_dtype
from augury.verify.tree import Draft


class MtpDrafter(RecurrentDrafter):
    """Runs the target's own extra layers: layer i drafts token i; if more are asked for, it begins again."""

    name = "mtp"
    head: MtpHead

    def __init__(self, config: SpeculativeConfig, setup: DrafterSetup) -> None:
        """Take the layers out of the target's files, or out of a checkpoint of their own."""
        directory = find_drafter(config, setup.dummy) if config.model else setup.directory
        dtype = choose_head_dtype(setup.dtype, setup.target)
        head = MtpHead.load(directory, setup.target, dtype, setup.max_model_len, setup.dummy, _depth(config))
        super().__init__(config, setup, head)
        self._slots = setup.slots
        self._kept: Kept | None = None

    def allocate(self, rows: int, block_size: int) -> None:
        """Allocate the cache, and with several layers room for the states that they hand to each other."""
        super().allocate(rows, block_size)
        if self.head.guesses > 1:
            self._kept = Kept.allocate(self.head, self._slots, rows // block_size)

    @property
    def stores(self) -> list[Tensor]:
        """See Drafter.stores."""
        return [*super().stores, *(() if self._kept is None else self._kept.ends)]

    def _only_reads(self, steps: int) -> bool:
        return super()._only_reads(steps) and self._kept is None  # the next layer needs a layer's states

    def _draft(self, new: HeadInput, steps: int) -> Draft:
        if self._kept is None:
            return super()._draft(new, steps)
        layers = Layers(self.head, self._kept, new)
        if self._tree is not None:
            return draft_tree(layers, self._tree)
        return draft_chain(layers, self.chain, self.nodes)


def _depth(config: SpeculativeConfig) -> int:
    """Draft tokens along the longest path."""
    if config.drafts_trees and config.tree is None:
        return max(map(len, read_tree(config.speculative_token_tree or "")))
    return config.num_speculative_tokens
