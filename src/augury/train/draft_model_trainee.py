"""A small language model in training: a few of the target's own layers, trained to predict what all of it says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from augury.train.batches import Batch, Teacher
from augury.train.branches import Branching, decoded
from augury.train.draft_model import kept_layers, shallow, shallow_config, write_shallow
from augury.train.reach import Reach, all_rows
from augury.train.trainee import Trainee


class DraftModelTrainee(Trainee):
    """Embeddings and output matrix are the target's and frozen; the layers learn."""

    own_words = False
    optional: tuple[str, ...] = ("lm_head.weight",)  # where it is tied to the embedding
    unrolls = False
    replays = False  # transformers' layers may do anything on the host

    def made(self, teacher: Teacher) -> nn.Module:
        """See Trainee.made."""
        kept = kept_layers(self.config.num_hidden_layers, self.goal.layers)
        self._config = shallow_config(teacher.directory, kept)
        return shallow(teacher.directory, self._config, kept)

    @property
    def decoder(self) -> Any:
        """The model without its output matrix."""
        module: Any = self.module
        return module.get_decoder()

    def states(self, batch: Batch, reached: Reach) -> list[Tensor]:
        """See Trainee.states."""
        positions = torch.arange(batch.tokens.shape[1], device=batch.tokens.device)
        decoder = self.decoder
        return [decoded(decoder, decoder.embed_tokens(batch.tokens), positions)[:, 1:][:, reached[0]]]

    @torch.no_grad()
    def drafts(self, batch: Batch, tokens: int) -> Tensor:
        """See Trainee.drafts."""
        branching = Branching(self.decoder, batch.tokens)
        guessed = [self.choose(branching.states)]
        while len(guessed) < tokens:
            guessed.append(self.choose(branching.write(guessed[-1])))
        return torch.stack(guessed, dim=2)

    def behind_text(self, batch: Batch, tokens: int) -> list[Tensor]:
        """See Trainee.behind_text; its later guesses are the first ones of later rows."""
        (first,) = self.states(batch, all_rows(batch, 1))
        return [first.roll(-i, 1) for i in range(tokens)]

    def export(self, target: Path, directory: Path) -> None:
        """See Trainee.export."""
        tied = {"tie_word_embeddings": self.config.tie_word_embeddings}
        write_shallow(self.module.state_dict(), self._config | tied, target, directory)
