"""A drafter in training: its loss on a batch, the drafts it would make, and its checkpoint.

Row r of a text knows its tokens up to r + 1 and the target's features up to token r; its guess i is token r + 2 + i.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from augury.config.errors import ConfigError
from augury.methods import registry
from augury.methods.registry import kinds as kinds
from augury.methods.registry import load
from augury.model.target import NORMED
from augury.train.batches import Batch, Teacher
from augury.train.linear_loss import CHUNK, linear_loss, row_losses
from augury.train.losses import Loss, d_pace
from augury.train.pace import pace
from augury.train.pairs import PairHead, shake
from augury.train.reach import Reach, all_rows, places, reach
from augury.train.unroll import unroll

FADE = 0.8  # a guess counts only where all before it were right


@dataclass(frozen=True, slots=True)
class Goal:
    """What to train."""

    kind: str
    depth: int = 4  # guesses that are unrolled
    vocabulary: int = 0  # tokens of the drafter's own; 0: all of the target's, by the target's own matrix
    layers: int = 2  # of a drafter that is a stack of them, or of each head


class Guess(NamedTuple):
    """One guess from many rows."""

    states: Tensor  # [B, n, H]: what the drafter's output matrix reads
    taught: Tensor  # [B, n, H]: what the target's reads at that token
    counted: Tensor  # bool [B, n]


class Trainee:
    """What the loop, the validation and the gate know of a drafter; each kind says how it guesses."""

    module: nn.Module
    tables: tuple[str, ...] = ()  # its tensors with a row for each token of its vocabulary
    fresh_rows = True  # a fresh row of a table is usable next to trained ones: it is the target's, not random
    optional: tuple[str, ...] = ()  # its tensors that a published drafter may lack
    own_words = True  # may guess among fewer tokens than the target has
    bounded = False  # drafts no more tokens than it was made for
    unrolls = True  # later guesses are trained too; those of a language model are the first ones of later rows
    replays = True  # a step's work is the same for all batches of a shape, so that it can be recorded

    def __init__(self, goal: Goal, config: Any, teacher: Teacher, words: Tensor) -> None:
        self.goal, self.config, self.embedding, self.words = goal, config, teacher.embedding, words
        self.layers = self.streams_of(goal.kind, config)
        self._rows = teacher.head[words.to(teacher.device)]  # the target's output matrix, for the words only
        self.module = self.made(teacher).to(teacher.device)

    @classmethod
    def check(cls, goal: Goal, tokens: int) -> None:
        """Refuse what this kind cannot do, before any work."""
        if goal.vocabulary and not cls.own_words:
            raise ConfigError(
                f"--vocabulary {goal.vocabulary}: {goal.kind} uses the target's whole vocabulary; write 0."
            )
        if cls.bounded and tokens > goal.depth:
            raise ConfigError(f"--k {tokens}: {goal.kind} drafts --depth tokens at most; write --depth {tokens}.")

    @classmethod
    def streams_of(cls, kind: str, config: Any) -> tuple[int, ...]:
        """The residual streams of the target that it reads."""
        return (NORMED,)

    def made(self, teacher: Teacher) -> nn.Module:
        """Build a fresh network."""
        raise NotImplementedError

    def states(self, batch: Batch, reached: Reach) -> list[Tensor]:
        """What the output matrix reads for each guess from the rows that reach it, [B, n, H], fed with the text."""
        raise NotImplementedError

    def drafts(self, batch: Batch, tokens: int) -> Tensor:
        """Greedy drafts from every row, int64 [B, R, tokens], as the engine would make them."""
        raise NotImplementedError

    def behind_text(self, batch: Batch, tokens: int) -> list[Tensor]:
        """What the output matrix reads for each guess from every row [B, R, H], if those before it were the text."""
        return self.states(batch, all_rows(batch, tokens))

    def places_of(self, tokens: Tensor) -> Tensor:
        """The indices of tokens among its words; -1 where it lacks them."""
        place = torch.full((self.config.vocab_size,), -1, device=tokens.device)
        place[self.words.to(tokens.device)] = torch.arange(len(self.words), device=tokens.device)
        return place[tokens]

    def export(self, target: Path, directory: Path) -> None:
        """Write a checkpoint in the published layout, as any server loads it."""
        raise NotImplementedError

    def published(self, name: str) -> str:
        """The name that a checkpoint has for a tensor of the module."""
        return name

    @property
    def head(self) -> Tensor:
        """The matrix that reads its states, [words, H]."""
        return self._rows

    def logits(self, states: Tensor) -> Tensor:
        """The drafter's logits, over its words."""
        return states @ self.head.to(states.dtype).T

    @torch.no_grad()
    def choose(self, states: Tensor) -> Tensor:
        """The likeliest token of every row of [..., H]."""
        parts = [self.logits(part).argmax(1) for part in states.flatten(0, -2).split(CHUNK)]
        return self.words.to(states.device)[torch.cat(parts)].view(states.shape[:-1])

    def loss(self, batch: Batch, measure: Loss) -> Tensor:
        """The loss over all guesses from all positions of the answers, later guesses counting less."""
        reached = reach(batch, self.goal.depth if self.unrolls else 1)
        guesses = [
            Guess(states, batch.normed.roll(-1 - i, 1)[:, rows], places(batch, i)[:, rows])
            for i, (states, rows) in enumerate(zip(self.states(batch, reached), reached, strict=True))
        ]
        return self._over(guesses, [FADE**i for i in range(len(guesses))], measure)

    def _over(self, guesses: list[Guess], weights: list[float], measure: Loss) -> Tensor:
        """The mean loss of counted rows, weighted by guess, or under D-PACE by row."""
        if measure is d_pace:
            return self._paced(guesses, measure)
        means = [
            weight * self._sum(guess, guess.counted, measure) / guess.counted.sum().clamp(min=1)
            for guess, weight in zip(guesses, weights, strict=True)
        ]
        return torch.stack(means).sum() / sum(weights)

    def _paced(self, guesses: list[Guess], measure: Loss) -> Tensor:
        """The mean loss of counted rows, weighted by row; see pace.py."""
        chances = [
            torch.exp(-row_losses(*self._rows_of(guess), measure)).view(guess.counted.shape) for guess in guesses
        ]
        weights = pace(chances, [guess.counted for guess in guesses])
        sums = [self._sum(guess, weight, measure) for guess, weight in zip(guesses, weights, strict=True)]
        counted = torch.stack([guess.counted.sum() for guess in guesses]).sum()
        return torch.stack(sums).sum() / counted.clamp(min=1)

    def _sum(self, guess: Guess, weights: Tensor, measure: Loss) -> Tensor:
        """The weighted sum of a guess's losses: the drafter's over its words against the target's over the same."""
        return linear_loss(*self._rows_of(guess), weights.flatten(), measure)

    def _rows_of(self, guess: Guess) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return guess.states.flatten(0, -2), self.head, guess.taught.flatten(0, -2), self._rows


class PairTrainee(Trainee):
    """A head that reads pairs; its class is on the method's card."""

    module: PairHead
    tables = ("lm_head.weight",)
    optional = ("lm_head.weight", "mask_hidden")

    def published(self, name: str) -> str:
        """See Trainee.published."""
        return self.module.published(name)

    @classmethod
    def streams_of(cls, kind: str, config: Any) -> tuple[int, ...]:
        """See Trainee.streams_of."""
        return _pair_head(kind).streams_of(config)

    def made(self, teacher: Teacher) -> PairHead:
        """See Trainee.made."""
        module = _pair_head(self.goal.kind).made_for(self.config, len(self.words))
        shake(module)
        if module.output is not None:
            with torch.no_grad():
                module.output.weight.copy_(self._rows)  # a good starting point
            module.output.requires_grad_(bool(self.goal.vocabulary))
        return module

    @property
    def head(self) -> Tensor:
        """See Trainee.head."""
        return self._rows if self.module.output is None else self.module.output.weight

    def states(self, batch: Batch, reached: Reach) -> list[Tensor]:
        """See Trainee.states."""
        return unroll(self.module, self.embedding, batch, reached)

    @torch.no_grad()
    def drafts(self, batch: Batch, tokens: int) -> Tensor:
        """See Trainee.drafts."""
        guessed: list[Tensor] = []

        def choose(_: int, states: Tensor) -> Tensor:
            guessed.append(self.choose(states))
            return guessed[-1]

        last = unroll(self.module, self.embedding, batch, all_rows(batch, tokens), choose)[-1]
        choose(tokens - 1, last.flatten(0, 1))
        return torch.stack(guessed, dim=1).view(*last.shape[:2], tokens)

    def export(self, target: Path, directory: Path) -> None:
        """See Trainee.export."""
        self.module.publish(target, self.config, self.words if self.goal.vocabulary else None, directory)


def trainee_of(kind: str) -> type[Trainee]:
    """The class that trains a kind of drafter."""
    found: type[Trainee] = load(registry.kind(kind).trainee)
    return found


def _pair_head(kind: str) -> type[PairHead]:
    found: type[PairHead] = load(registry.kind(kind).head)
    return found


def layers_of(kind: str, config: Any) -> tuple[int, ...]:
    """The residual streams of the target that a kind reads."""
    return trainee_of(kind).streams_of(kind, config)


def trainable(module: nn.Module) -> list[nn.Parameter]:
    """The parameters that are trained."""
    return [parameter for parameter in module.parameters() if parameter.requires_grad]
