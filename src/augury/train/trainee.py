"""A head in training: its loss on a batch, the drafts it would make, and its checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from augury.config.errors import ConfigError
from augury.methods.registry import METHODS, load
from augury.train.batches import Batch
from augury.train.linear_loss import CHUNK, linear_loss
from augury.train.losses import Loss
from augury.train.pairs import PairHead, shake
from augury.train.unroll import unroll

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
        self.module = head_of(goal.kind).made_for(config, len(words))
        shake(self.module)
        self._rows = output[words.to(output.device)]  # the target's matrix for the words that are guessed
        if self.module.output is not None:
            with torch.no_grad():
                self.module.output.weight.copy_(self._rows)  # a good beginning
            self.module.output.requires_grad_(bool(goal.vocabulary))
        self.module.to(embedding.device)

    def logits(self, states: Tensor) -> Tensor:
        """The drafter's, over its words."""
        return states @ self._head.to(states.dtype).T

    @property
    def _head(self) -> Tensor:
        return self._rows if self.module.output is None else self.module.output.weight

    def loss(self, batch: Batch, measure: Loss) -> Tensor:
        """Over all guesses from all places of the answers, those further on counting less."""
        found, total = unroll(self.module, self.embedding, batch, self.goal.depth), 0.0
        losses = []
        for i, states in enumerate(found):
            taught = batch.normed.roll(-1 - i, 1)[:, : states.shape[1]]
            losses.append(FADE**i * self._mean(states, taught, places(batch, i), measure))
            total += FADE**i
        return torch.stack(losses).sum() / total

    def _mean(self, states: Tensor, taught: Tensor, counted: Tensor, measure: Loss) -> Tensor:
        """The loss of a counted row: the drafter's guesses over its words against the target's over the same."""
        weights = counted.flatten()
        flat = states.flatten(0, -2), self._head, taught.flatten(0, -2), self._rows
        return linear_loss(*flat, weights, measure) / weights.sum().clamp(min=1)

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
        self.module.publish(target, self.config, self.words if self.goal.vocabulary else None, directory)


def places(batch: Batch, guess: int) -> Tensor:
    """Rows whose guess is a known token of an answer, bool [B, R]; row r guesses token r + 2 + guess."""
    row = torch.arange(batch.tokens.shape[1] - 1, device=batch.tokens.device)
    return (row >= batch.starts[:, None] - 1) & (row + 2 + guess < batch.lengths[:, None])


def heads() -> dict[str, str]:
    """What can be trained, by name, and where its class is."""
    return {name: gate.head for card in METHODS.values() for name, gate in card.gates.items() if gate.head}


def head_of(kind: str) -> type[PairHead]:
    """The class of a kind of head."""
    if kind not in heads():
        raise ConfigError(f"augury train {kind}: unknown; there are {', '.join(heads())}.")
    found: type[PairHead] = load(heads()[kind])
    return found


def layers_of(kind: str, config: Any) -> tuple[int, ...]:
    """The residual streams of the target that a kind reads."""
    return head_of(kind).streams_of(config)


def trainable(module: nn.Module) -> list[nn.Parameter]:
    """Parameters that learn."""
    return [parameter for parameter in module.parameters() if parameter.requires_grad]
