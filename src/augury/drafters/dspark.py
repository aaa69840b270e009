"""`dspark`: DFlash's block, its tokens tied together one after another by a low-rank correction; see dflash.py.

The block is run once; what remains per token is two small matrices. So a tree costs as little as a chain: every node
corrects the same scores of its depth by its own token.
"""

from __future__ import annotations

from torch import Tensor

from augury.config.speculative import SpeculativeConfig
from augury.drafters.base import DrafterSetup, DraftInput
from augury.drafters.block import BlockDrafter, block_rows, newest_tokens
from augury.drafters.checkpoint import find_drafter
from augury.drafters.grow import TreeShape
from augury.model.heads.dspark import DSpark
from augury.model.load import choose_head_dtype
from augury.verify.tree import Draft


class DSparkDrafter(BlockDrafter):
    """Fills a block, then walks it."""

    name = "dspark"
    head: DSpark

    def __init__(self, config: SpeculativeConfig, setup: DrafterSetup) -> None:
        """Load the drafter next to its target."""
        dtype = choose_head_dtype(setup.dtype, setup.target)
        head = DSpark.load(find_drafter(config, setup.dummy), setup.target, dtype, setup.max_model_len, setup.dummy)
        super().__init__(config, setup, head)
        self._top_k = config.dspark_draft_topk
        self._tree = TreeShape.of(config, self.vocab)

    def propose(self, inputs: DraftInput) -> Draft:
        """Read the new context of every group, fill a block for those that may draft, and correct it token by token."""
        budget, masks, steps = self.begin(inputs)
        if steps == 0:
            return Draft.empty(len(budget), self.nodes, self.device)
        hidden = self.head.states(*block_rows(inputs, masks, steps, self.head.mask_token or 0, self.head.anchored))
        base = self.head.scores(hidden).view(len(budget), steps, -1)
        hidden = hidden.view(len(budget), steps, -1)
        newest = newest_tokens(inputs)
        if self._tree is not None:
            return self._grown(self._tree, base, hidden, newest, budget)
        draft, state = self.chain.begin(inputs, budget), self.head.start(len(budget))
        tokens = newest
        for i in range(steps):
            logits, state = self.head.guess(base[:, i].contiguous(), hidden[:, i], tokens, state, self._top_k)
            tokens = self.chain.write(draft, inputs, logits, i)
            if not self.chain.goes_on():
                break
        return self.chain.finish(draft, at_once=True)

    def _grown(self, tree: TreeShape, base: Tensor, hidden: Tensor, newest: Tensor, budget: Tensor) -> Draft:
        """A node's children are scored at its depth, whatever its number; beyond the block there are none to score."""

        def run(
            tokens: Tensor, states: Tensor | None, bits: Tensor, depth: int, number: int
        ) -> tuple[Tensor, Tensor | None]:
            own, at = (
                x[:, min(depth, x.shape[1] - 1), None].expand(*tokens.shape, -1).flatten(0, 1) for x in (base, hidden)
            )
            before = None if states is None else states.flatten(0, 1)
            logits, onward = self.head.guess(own, at, tokens.flatten(), before, self._top_k)
            return logits.view(*tokens.shape, -1), None if onward is None else onward.view(*tokens.shape, -1)

        start = self.head.start(len(budget))
        logits, state = self.head.guess(base[:, 0], hidden[:, 0], newest, start, self._top_k)
        return tree.grow(logits, state, run, budget)
