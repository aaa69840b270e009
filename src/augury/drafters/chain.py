"""A chain being drafted: tokens one after another, and the laws they were drawn from where a rule wants them."""

from __future__ import annotations

import torch
from torch import Tensor

from augury.config.speculative import SpeculativeConfig
from augury.drafters.base import Turn
from augury.drafters.pick import make_pick
from augury.verify.tree import Draft, chain_parents


class ChainWriter:
    """Turns scores into chains."""

    def __init__(
        self, config: SpeculativeConfig, vocab: int, device: torch.device, targets: Tensor | None = None
    ) -> None:
        self._pick = make_pick(config, device, vocab, targets)
        self._laws_wanted = config.keeps_laws
        self._nodes, self._vocab, self._device = config.num_speculative_tokens, vocab, device

    def blank(self, groups: int) -> Draft:
        """A chain for every group, still empty."""
        tokens = torch.zeros(groups, self._nodes, dtype=torch.int64, device=self._device)
        shape = (groups, self._nodes, self._vocab)
        laws = torch.zeros(shape, dtype=torch.float32, device=self._device) if self._laws_wanted else None
        parents = chain_parents(groups, self._nodes, self._device)
        return Draft(tokens, parents, torch.zeros_like(tokens[:, 0]), laws, branching=False)

    def write(self, draft: Draft, turn: Turn, logits: Tensor, i: int) -> Tensor:
        """Choose token i of every chain from scores [G, V]; gives it back."""
        picked = self._pick(logits, turn.slots, turn.lengths + i, turn.sampling, i)
        draft.tokens[:, i] = picked.tokens
        if draft.probs is not None and picked.law is not None:
            draft.probs[:, i] = picked.law
        return picked.tokens

    def at_once(self, turn: Turn, logits: Tensor, budget: Tensor) -> Draft:
        """All tokens from scores [G * K, V] that came out of one pass."""
        draft = self.blank(len(budget))
        lines = logits.view(len(budget), self._nodes, -1)
        for i in range(self._nodes):
            self.write(draft, turn, lines[:, i].contiguous(), i)
        draft.count = budget
        return draft
