"""DSpark: DFlash's layers, and a correction of each token's scores by the token before it."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from augury.model.heads.dflash import DFlash, DFlashReader
from augury.model.heads.dflash_config import DSPARK
from augury.model.heads.markov import Markov, read_markov
from augury.model.target import Target

NEVER = float("-inf")


class DSpark(DFlash):
    """The block drafter and its sequential head. Its confidence head, made for adaptive verification, is not read."""

    markov: Markov | None = None

    def start(self, groups: int) -> Tensor | None:
        """The sequential head's state before a block, where it has one."""
        return self.markov.start(groups) if self.markov is not None else None

    @torch.no_grad()
    def guess(
        self, base: Tensor, hidden: Tensor, previous: Tensor, state: Tensor | None, top_k: int | None
    ) -> tuple[Tensor, Tensor | None]:
        """Scores [R, target vocabulary] after the tokens `previous` [R]; top_k leaves only the likeliest base ones.

        `base` are the scores of the hidden states [R, H] themselves, which need no token and come from one pass.
        """
        onward = None
        if self.markov is not None:
            corrected, onward = self.markov(previous, hidden, state)
            corrected = base + corrected
            if top_k is not None:
                kept = base.topk(min(top_k, base.shape[1]), dim=1).indices
                corrected = torch.full_like(base, NEVER).scatter(1, kept, corrected.gather(1, kept))
            base = corrected
        return self.widened(base), onward

    @classmethod
    def load(
        cls, directory: Path, target: Target, dtype: torch.dtype, max_model_len: int, dummy: bool = False
    ) -> DSpark:
        """Read the dense (DeepSpec) layout or the speculators one."""
        reader = DFlashReader(directory, target, dtype, DSPARK, dummy)
        size = reader.config.layer.hidden_size
        sizes = (target.vocab_size, reader.config.draft_vocab, size)
        markov = read_markov(reader.weights, reader.config.raw, directory, sizes)
        reader.weights.drop("confidence_head.proj.weight", "confidence_head.proj.bias")
        head = cls(target, reader.config, *reader.finish("DSpark drafter", max_model_len))
        head.markov = markov
        return head
