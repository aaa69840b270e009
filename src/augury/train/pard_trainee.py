"""PARD in training: a draft model that guesses several tokens in one pass, from mask tokens after the known text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from augury.train.batches import Batch, Teacher
from augury.train.branches import masked_states
from augury.train.draft_model import write_shallow
from augury.train.draft_model_trainee import DraftModelTrainee
from augury.train.reach import Reach, all_rows
from augury.train.spare_token import spare_token

LEARNT = "mask_shift"


class PardTrainee(DraftModelTrainee):
    """Its guesses are branches of masks after the text; the embedding of a mask is learnt."""

    unrolls = True
    optional: tuple[str, ...] = (*DraftModelTrainee.optional, LEARNT)  # a published drafter has it in its embedding

    def made(self, teacher: Teacher) -> nn.Module:
        """See Trainee.made."""
        module: Any = super().made(teacher)
        self._mask = spare_token(teacher.directory, int(self.config.vocab_size))
        # Apart from the embedding, whose other rows are frozen: a gradient for them would cost more than the layers do.
        module.register_parameter(LEARNT, nn.Parameter(torch.zeros(self.config.hidden_size)))
        return module  # type: ignore[no-any-return]

    @property
    def _embedded(self) -> Tensor:
        """The embedding of a mask, [H]."""
        module: Any = self.module
        row: Tensor = module.get_input_embeddings().weight[self._mask] + module.mask_shift
        return row

    @property
    def head(self) -> Tensor:
        """See Trainee.head; where the output matrix is tied to the embedding, the mask's line in it changes too."""
        if not self.config.tie_word_embeddings:
            return self._rows
        rows = self._rows.clone()
        rows[self._mask] = self._embedded.detach().to(rows.dtype)
        return rows

    def states(self, batch: Batch, reached: Reach) -> list[Tensor]:
        """See Trainee.states."""
        if len(reached) == 1:
            return super().states(batch, reached)
        text, *later = masked_states(self.decoder, batch.tokens, reached[1:], self._embedded)
        return [text[:, 1:][:, reached[0]], *later]

    def behind_text(self, batch: Batch, tokens: int) -> list[Tensor]:
        """See Trainee.behind_text; its guesses do not depend on each other."""
        return self.states(batch, all_rows(batch, tokens))

    @torch.no_grad()
    def drafts(self, batch: Batch, tokens: int) -> Tensor:
        """See Trainee.drafts."""
        return torch.stack([self.choose(states) for states in self.behind_text(batch, tokens)], dim=2)

    def export(self, target: Path, directory: Path) -> None:
        """Write a draft model whose config.json names its mask token."""
        told = {"pard_token": self._mask, "spd_type": "pard", "tie_word_embeddings": self.config.tie_word_embeddings}
        tensors = dict(self.module.state_dict())
        tensors.pop(LEARNT)
        (name,) = (name for name in tensors if name.endswith("embed_tokens.weight"))
        tensors[name] = tensors[name].clone()
        tensors[name][self._mask] = self._embedded.detach()
        write_shallow(tensors, self._config | told, target, directory)
