"""Heads without attention in training: they read the target's last hidden state, and nothing before it."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from augury.train.batches import Batch, Teacher
from augury.train.export import halved, write_checkpoint
from augury.train.medusa import Medusa, medusa_config
from augury.train.mlp_speculator import Speculator, mlp_config, rows_of
from augury.train.pairs import shake
from augury.train.reach import Reach, all_rows
from augury.train.trainee import Trainee


class MedusaTrainee(Trainee):
    """A block for each guess, and one output matrix for all: most of the file would be matrices otherwise."""

    module: Medusa
    bounded = True
    tables = ("lm_heads.0.weight",)

    def made(self, teacher: Teacher) -> nn.Module:
        """See Trainee.made."""
        module = Medusa(self.goal.depth, self._rows.float(), shared=True, layers=self.goal.layers)
        module.lm_heads.requires_grad_(bool(self.goal.vocabulary))
        return module

    @property
    def head(self) -> Tensor:
        """See Trainee.head."""
        return self.module.lm_heads[0].weight  # type: ignore[return-value]

    def states(self, batch: Batch, reached: Reach) -> list[Tensor]:
        """See Trainee.states."""
        hidden = batch.normed[:, :-1].to(self.head.dtype)
        return [block(hidden[:, rows]) for block, rows in zip(self.module.blocks, reached, strict=False)]

    @torch.no_grad()
    def drafts(self, batch: Batch, tokens: int) -> Tensor:
        """See Trainee.drafts."""
        return torch.stack([self.choose(states) for states in self.states(batch, all_rows(batch, tokens))], dim=2)

    def export(self, target: Path, directory: Path) -> None:
        """Write vLLM's layout, with the matrix under the name by which vLLM reads a shared one."""
        told = medusa_config(self.config, self.goal.depth, len(self.words), self.goal.layers)
        told["original_lm_head"] = True
        named = {"token_map": self.words} if self.goal.vocabulary else {}
        write_checkpoint(directory, halved(self.module.state_dict()) | named, told)


class MLPTrainee(Trainee):
    """A recurrent head in IBM's layout, one set of weights for all guesses."""

    module: Speculator
    bounded = True
    tables = ("emb.weight", "head.weight")
    fresh_rows = False

    def published(self, name: str) -> str:
        """See Trainee.published."""
        return self.module.names[name]

    def made(self, teacher: Teacher) -> nn.Module:
        """See Trainee.made."""
        self._token_rows = rows_of(self.words.cpu(), self.config.vocab_size).to(teacher.device)
        module = Speculator(self.config.hidden_size, self.config.hidden_size, len(self.words) + 1, self.goal.depth)
        shake(module)
        return module

    @property
    def head(self) -> Tensor:
        """See Trainee.head."""
        return self.module.head.weight[: len(self.words)]

    def states(self, batch: Batch, reached: Reach) -> list[Tensor]:
        """See Trainee.states."""
        x, found = self._begin(batch)[:, reached[0]], list[Tensor]()
        for i, rows in enumerate(reached):
            fed = self._token_rows[batch.tokens.roll(-1 - i, 1)[:, rows]]
            x = self.module.step(i, x[:, : len(rows)], fed)
            found.append(x)
        return found

    @torch.no_grad()
    def drafts(self, batch: Batch, tokens: int) -> Tensor:
        """See Trainee.drafts."""
        x, guessed = self._begin(batch), [batch.tokens[:, 1:]]
        for i in range(tokens):
            x = self.module.step(i, x, self._token_rows[guessed[-1]])
            guessed.append(self.choose(x))
        return torch.stack(guessed[1:], dim=2)

    def _begin(self, batch: Batch) -> Tensor:
        return self.module.begin(batch.normed[:, :-1].to(self.module.scale.dtype))

    def export(self, target: Path, directory: Path) -> None:
        """Write IBM's layout; a vocabulary of its own is named by d2t, and all other tokens share one embedding."""
        own, told = torch.arange(len(self.words)), mlp_config(self.config, self.config.hidden_size, self.goal.depth)
        if not self.goal.vocabulary:
            write_checkpoint(directory, halved(self.module.published(own, own)), told)
            return
        tensors = halved(self.module.published(torch.arange(len(own) + 1), own)) | {"d2t": self.words.cpu() - own}
        write_checkpoint(directory, tensors, told | {"draft_vocab_size": len(own)})
