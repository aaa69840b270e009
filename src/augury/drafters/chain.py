"""A chain being drafted: its tokens, and the probabilities they were drawn from if a rule needs them."""

from __future__ import annotations

import torch
from torch import Tensor

from augury.config.speculative import SpeculativeConfig
from augury.drafters.base import DraftInput
from augury.drafters.confidence import Confidence
from augury.drafters.pick import make_pick
from augury.verify.tree import Draft, chain_parents


class ChainWriter:
    """Picks the tokens of chains from logits."""

    confidence: Confidence | None = None  # ends chains early, where the controller wants that
    _pays = True  # whether one more token is worth its cost

    def __init__(
        self, config: SpeculativeConfig, vocab: int, device: torch.device, targets: Tensor | None = None
    ) -> None:
        self._pick = make_pick(config, device, vocab, targets)
        self._keeps_probs = config.keeps_probs
        self._nodes, self._vocab, self._device = config.num_speculative_tokens, vocab, device

    def begin(self, inputs: DraftInput, budget: Tensor) -> Draft:
        """A chain for every group, still empty, of at most `budget` tokens."""
        if self.confidence is not None:
            self.confidence.begin(inputs, budget)
        groups = len(budget)
        tokens = torch.zeros(groups, self._nodes, dtype=torch.int64, device=self._device)
        shape = (groups, self._nodes, self._vocab)
        probs = torch.zeros(shape, dtype=torch.float32, device=self._device) if self._keeps_probs else None
        parents = chain_parents(groups, self._nodes, self._device)
        return Draft(tokens, parents, budget, probs, branching=False)

    def none(self, inputs: DraftInput, budget: Tensor) -> Draft:
        """The draft of a pass in which no group may draft."""
        return self.finish(self.begin(inputs, budget))

    def write(self, draft: Draft, inputs: DraftInput, logits: Tensor, i: int) -> Tensor:
        """Pick token i of every chain from logits [G, V], and return it."""
        picked = self._pick(logits, inputs.slots, inputs.lengths + i, inputs.sampling, i)
        draft.tokens[:, i] = picked.tokens
        if self.confidence is not None:
            self._pays = self.confidence.note(logits, i)
        if draft.probs is not None and picked.probs is not None:
            draft.probs[:, i] = picked.probs
        return picked.tokens

    def goes_on(self) -> bool:
        """Whether a drafter that drafts token by token should draft another one."""
        return self.confidence is None or self._pays

    def finish(self, draft: Draft, at_once: bool = False) -> Draft:
        """Complete a draft; `at_once`: all its tokens came out of one forward pass."""
        if self.confidence is not None:
            draft.count = self.confidence.finish(at_once)
        return draft

    def at_once(self, inputs: DraftInput, lines: Tensor, budget: Tensor) -> Draft:
        """Draft all tokens from the logits [G, K, V] of one forward pass."""
        draft = self.begin(inputs, budget)
        for i in range(lines.shape[1]):
            self.write(draft, inputs, lines[:, i].contiguous(), i)
        return self.finish(draft, at_once=True)
