"""PARD in training: a draft model that guesses several tokens in one pass, from mask tokens behind what is known."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from augury.train.batches import Batch, Teacher
from augury.train.branches import masked_states
from augury.train.draft_model_trainee import DraftModelTrainee
from augury.train.losses import Loss
from augury.train.trainee import FADE, Goal, places

KEPT, LEAST = 0.7, 0.2  # of the rows at each depth, as a share of those one depth before, and of all rows


class PardTrainee(DraftModelTrainee):
    """Guesses further on are trained from fewer rows, each of which has all its guesses before them (COD)."""

    def __init__(self, goal: Goal, config: Any, teacher: Teacher, words: Tensor) -> None:
        self._mask = int(config.vocab_size) - 1  # its embedding is nobody's otherwise
        super().__init__(goal, config, teacher, words)

    def loss(self, batch: Batch, measure: Loss) -> Tensor:
        """See Trainee.loss; the rows that reach a depth are the same for all texts of the batch."""
        branches, losses, total = self._branches(batch), list[Tensor](), 0.0
        found = self._states(batch, branches)
        for i, states in enumerate(found):
            rows = branches[i - 1].expand(len(states), -1) if i else None
            losses.append(FADE**i * self._guess(batch, i, states, measure, rows))
            total += FADE**i
        return torch.stack(losses).sum() / total

    def _branches(self, batch: Batch) -> list[Tensor]:
        """Rows of the answers that reach each depth after the first guess."""
        first = places(batch, 0).any(0).nonzero()[:, 0]
        drawn = first[torch.randperm(len(first), generator=batch.dice()).to(first.device)]
        shares = [max(KEPT**depth, LEAST) for depth in range(1, self.goal.depth)]
        return [drawn[: math.ceil(share * len(drawn))] for share in shares]

    def _states(self, batch: Batch, branches: list[Tensor]) -> list[Tensor]:
        """What the output matrix reads for the first guess of all rows [B, R, H] and for later ones of some."""
        if not branches:
            return self.states(batch)
        text, *later = masked_states(self.decoder, batch.tokens, branches, self._mask)
        return [text[:, 1:], *later]

    @torch.no_grad()
    def drafts(self, batch: Batch, tokens: int) -> Tensor:
        """See Trainee.drafts."""
        rows = torch.arange(batch.tokens.shape[1] - 1, device=batch.tokens.device)
        return torch.stack([self.choose(states) for states in self._states(batch, [rows] * (tokens - 1))], dim=2)

    def export(self, target: Path, directory: Path) -> None:
        """A draft model that says what its masks are."""
        self._config |= {"pard_token": self._mask, "spd_type": "pard"}
        super().export(target, directory)
