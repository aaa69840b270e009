"""A head in training: its loss on a batch, the drafts it would make, and its checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from augury.config.errors import ConfigError
from augury.model.target import NORMED
from augury.train.batches import Batch
from augury.train.eagle import Eagle, Eagle3, Mtp, write_eagle, write_eagle3, write_mtp
from augury.train.layers import LayerSizes
from augury.train.losses import Loss
from augury.train.pairs import PairHead, shake
from augury.train.study import stream_layers
from augury.train.unroll import unroll

CHUNK = 4096  # rows whose logits are held at a time; they are computed again for the gradient
FADE = 0.8  # a guess counts only where all before it were right


@dataclass(frozen=True, slots=True)
class Goal:
    """What is trained."""

    kind: str
    depth: int = 4  # guesses that are unrolled
    vocabulary: int = 0  # words of the drafter's own; 0: all of the target's, read by the target's own matrix


class Trainee:
    """A head that reads pairs."""

    def __init__(self, goal: Goal, config: Any, embedding: Tensor, output: Tensor, words: Tensor) -> None:
        self.goal, self.config, self.embedding, self.words = goal, config, embedding, words
        self.layers = layers_of(goal.kind, config)
        self.module = _make(goal, config, len(self.layers), len(words))
        shake(self.module)
        self._rows = output[words.to(output.device)]  # the target's matrix for the words that are guessed
        if isinstance(self.module, Eagle3):
            with torch.no_grad():
                self.module.lm_head.weight.copy_(self._rows)  # a good beginning
            self.module.lm_head.requires_grad_(bool(goal.vocabulary))
        self.module.to(embedding.device)

    def logits(self, states: Tensor) -> Tensor:
        """The drafter's, over its words."""
        head = self.module.lm_head.weight if isinstance(self.module, Eagle3) else self._rows
        return states @ head.to(states.dtype).T

    def loss(self, batch: Batch, measure: Loss) -> Tensor:
        """Over all guesses from all places of the answers, those further on counting less."""
        found, total = unroll(self.module, self.embedding, batch, self.goal.depth), 0.0
        losses = []
        for i, states in enumerate(found):
            counted = places(batch, i)
            taught = batch.normed.roll(-1 - i, 1)[:, : states.shape[1]]
            losses.append(FADE**i * self._mean(states[counted], taught[counted], measure))
            total += FADE**i
        return torch.stack(losses).sum() / total

    def _mean(self, states: Tensor, taught: Tensor, measure: Loss) -> Tensor:
        parts = [
            checkpoint(self._part, mine, theirs, measure, use_reentrant=False)
            for mine, theirs in zip(states.split(CHUNK), taught.split(CHUNK), strict=True)
        ]
        return torch.stack(parts).sum() / max(1, len(states))

    def _part(self, states: Tensor, taught: Tensor, measure: Loss) -> Tensor:
        return measure((taught @ self._rows.T).float(), self.logits(states).float())

    @torch.no_grad()
    def drafts(self, batch: Batch, tokens: int) -> Tensor:
        """Greedy drafts from every place, int64 [B, R, tokens], fed with their own guesses."""
        guessed: list[Tensor] = []
        words = self.words.to(batch.tokens.device)

        def choose(_: int, states: Tensor) -> Tensor:
            parts = [self.logits(part).argmax(1) for part in states.split(CHUNK)]
            guessed.append(words[torch.cat(parts)])
            return guessed[-1]

        last = unroll(self.module, self.embedding, batch, tokens, choose)[-1]
        choose(tokens - 1, last.flatten(0, 1))
        return torch.stack(guessed, dim=1).view(*last.shape[:2], tokens)

    def export(self, target: Path, directory: Path) -> None:
        """A checkpoint in the published layout, as any server loads it."""
        module = self.module
        if isinstance(module, Eagle3):
            words = self.words if self.goal.vocabulary else None
            write_eagle3(module, self.config, self.layers, words, directory)
        elif isinstance(module, Eagle):
            write_eagle(module, self.config, directory)
        else:
            assert isinstance(module, Mtp)
            write_mtp(module, target, directory)


def places(batch: Batch, guess: int) -> Tensor:
    """Rows whose guess is a known token of an answer, bool [B, R]; row r guesses token r + 2 + guess."""
    row = torch.arange(batch.tokens.shape[1] - 1, device=batch.tokens.device)
    return (row >= batch.starts[:, None] - 1) & (row + 2 + guess < batch.lengths[:, None])


def layers_of(kind: str, config: Any) -> tuple[int, ...]:
    """The residual streams of the target that a kind reads."""
    return stream_layers(config.num_hidden_layers) if kind in ("eagle3", "p-eagle") else (NORMED,)


def _make(goal: Goal, config: Any, streams: int, words: int) -> PairHead:
    shape = LayerSizes.like(config)
    if goal.kind in ("eagle3", "p-eagle"):
        mask = config.vocab_size - 1 if goal.kind == "p-eagle" else None
        return Eagle3(shape, streams, words, mask)
    if goal.kind == "eagle":
        return Eagle(shape)
    if goal.kind == "mtp":
        return Mtp(LayerSizes.of_target(config))
    raise ConfigError(f"augury train {goal.kind}: unknown; there are eagle3, p-eagle, eagle, mtp.")


def trainable(module: nn.Module) -> list[nn.Parameter]:
    """Parameters that learn."""
    return [parameter for parameter in module.parameters() if parameter.requires_grad]
