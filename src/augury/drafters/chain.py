"""A chain being drafted: its tokens, and the probabilities they were drawn from if a rule needs them."""

from __future__ import annotations

import torch
from torch import Tensor

from augury.config.speculative import SpeculativeConfig
from augury.drafters.base import DraftInput
from augury.drafters.pick import make_pick
from augury.verify.tree import Draft, chain_parents


class ChainWriter:
    """Turns scores into chains."""

    def __init__(
        self, config: SpeculativeConfig, vocab: int, device: torch.device, targets: Tensor | None = None
    ) -> None:
        self._pick = make_pick(config, device, vocab, targets)
        self._keeps_probs = config.keeps_probs
        self._nodes, self._vocab, self._device = config.num_speculative_tokens, vocab, device

    def blank(self, groups: int) -> Draft:
        """A chain for every group, still empty."""
        tokens = torch.zeros(groups, self._nodes, dtype=torch.int64, device=self._device)
        shape = (groups, self._nodes, self._vocab)
        probs = torch.zeros(shape, dtype=torch.float32, device=self._device) if self._keeps_probs else None
        parents = chain_parents(groups, self._nodes, self._device)
        return Draft(tokens, parents, torch.zeros_like(tokens[:, 0]), probs, branching=False)

    def write(self, draft: Draft, inputs: DraftInput, logits: Tensor, i: int) -> Tensor:
        """Choose token i of every chain from scores [G, V]; gives it back."""
        picked = self._pick(logits, inputs.slots, inputs.lengths + i, inputs.sampling, i)
        draft.tokens[:, i] = picked.tokens
        if draft.probs is not None and picked.probs is not None:
            draft.probs[:, i] = picked.probs
        return picked.tokens

    def at_once(self, inputs: DraftInput, logits: Tensor, budget: Tensor) -> Draft:
        """All tokens from scores [G * K, V] that came out of one pass."""
        draft = self.blank(len(budget))
        lines = logits.view(len(budget), self._nodes, -1)
        for i in range(self._nodes):
            self.write(draft, inputs, lines[:, i].contiguous(), i)
        draft.count = budget
        return draft
