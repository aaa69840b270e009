"""DFlash2's drafts, under the method `dflash`: the selector walks the candidates that a filled block nominates.

A chain picks one candidate after another, each scored given the one picked before it. A tree uses the same scores for
pairs of parent and child; it grows over ranks among the candidates, so that a level is a few numbers per node and never
the whole vocabulary.
"""

from __future__ import annotations

from torch import Tensor

from augury.config.errors import ConfigError
from augury.config.speculative import SpeculativeConfig
from augury.drafters.base import DraftInput
from augury.drafters.block import newest_tokens
from augury.drafters.chain import ChainWriter
from augury.drafters.grow import TreeShape
from augury.model.heads.dflash2 import DFlash2, Nominees
from augury.verify.tree import Draft, shape_of

NEVER = float("-inf")


class SelectorWalk:
    """Turns the hidden states of blocks into drafts."""

    def __init__(self, head: DFlash2, config: SpeculativeConfig, chain: ChainWriter, vocab: int) -> None:
        self._head, self._chain, self._vocab = head, chain, vocab
        self._tree = _tree_shape(config, head.selector.top_k)

    def __call__(self, inputs: DraftInput, hidden: Tensor, budget: Tensor) -> Draft:
        """Draft for all groups from the hidden states of their blocks [G, depth, H]."""
        found, newest = self._head.nominees(hidden), newest_tokens(inputs)
        if self._tree is not None:
            return self._grown(self._tree, found, newest, budget)
        draft, tokens = self._chain.begin(inputs, budget), newest
        for i in range(hidden.shape[1]):
            scores = self._head.selector.pairs(found, i, tokens[:, None])[:, 0]
            wide = scores.new_full((len(scores), self._vocab), NEVER).scatter(1, found.tokens[:, i], scores)
            tokens = self._chain.write(draft, inputs, wide, i)
        return self._chain.finish(draft, at_once=True)

    def _grown(self, tree: TreeShape, found: Nominees, newest: Tensor, budget: Tensor) -> Draft:
        """A tree of ranks, then of the tokens they stand for; beyond the block there are no candidates to score."""
        selector, last = self._head.selector, found.tokens.shape[1] - 1

        def run(
            ranks: Tensor, states: Tensor | None, bits: Tensor, depth: int, number: int
        ) -> tuple[Tensor, Tensor | None]:
            tokens = found.tokens[:, min(depth - 1, last)].gather(1, ranks)
            return selector.pairs(found, min(depth, last), tokens), None

        draft = tree.grow(selector.pairs(found, 0, newest[:, None])[:, 0], None, run, budget)
        above = (shape_of(draft.parents)[0] - 1).clamp(max=last)
        draft.tokens = found.tokens.flatten(1).gather(1, above * found.tokens.shape[2] + draft.tokens)
        return draft


def _tree_shape(config: SpeculativeConfig, known: int) -> TreeShape | None:
    try:
        return TreeShape.of(config, known)
    except ConfigError as error:
        raise ConfigError(
            f"this DFlash2 drafter chooses among {known} tokens at each position (selector_top_k): {error}"
        ) from None
