"""PARD in training: a draft model that guesses several tokens in one pass, from mask tokens behind what is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from augury.train.batches import Batch, Teacher
from augury.train.branches import masked_states
from augury.train.draft_model_trainee import DraftModelTrainee
from augury.train.reach import Reach, all_rows
from augury.train.trainee import Goal


class PardTrainee(DraftModelTrainee):
    """Its guesses are branches of masks behind the text."""

    unrolls = True

    def __init__(self, goal: Goal, config: Any, teacher: Teacher, words: Tensor) -> None:
        self._mask = int(config.vocab_size) - 1  # its embedding is nobody's otherwise
        super().__init__(goal, config, teacher, words)

    def states(self, batch: Batch, reached: Reach) -> list[Tensor]:
        """See Trainee.states."""
        if len(reached) == 1:
            return super().states(batch, reached)
        text, *later = masked_states(self.decoder, batch.tokens, reached[1:], self._mask)
        return [text[:, 1:][:, reached[0]], *later]

    @torch.no_grad()
    def drafts(self, batch: Batch, tokens: int) -> Tensor:
        """See Trainee.drafts."""
        found = self.states(batch, all_rows(batch, tokens))
        return torch.stack([self.choose(states) for states in found], dim=2)

    def export(self, target: Path, directory: Path) -> None:
        """A draft model that says what its masks are."""
        self._config |= {"pard_token": self._mask, "spd_type": "pard"}
        super().export(target, directory)
