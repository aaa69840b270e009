"""Training heads that read pairs (token, the target's features of the token before it): EAGLE, EAGLE-3, MTP.

A draft is unrolled as it will be run (EAGLE-3's training-time test): from every position of an answer the first guess
reads the target's features, each later one the head's own hidden state, and it attends to the true pairs before that
position and to its own drafted ones after it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from augury.model.target import NORMED
from augury.train.layers import DecoderLayer, KeysValues
from augury.train.study import Lesson, Study


@dataclass(slots=True)
class Pairs:
    """Some lessons packed: all their pairs, and the positions that drafts start from."""

    tokens: Tensor  # int64 [R]
    streams: Tensor  # [R, n * H]: of the token before each
    positions: Tensor  # int64 [R]
    anchors: Tensor  # int64 [A]: rows that a draft starts from
    ahead: Tensor  # int64 [A, depth]: the tokens a draft should guess, -1 past the end of the text
    seen: Tensor  # bool [A, R]: the anchor itself and the rows before it in its own text


def pack(lessons: list[Lesson], layers: tuple[int, ...], depth: int) -> Pairs:
    """Every position of the answers as an anchor; the first is the answer's first token, which prefill samples."""
    parts: list[tuple[Tensor, ...]] = []
    begin = 0
    for number, lesson in enumerate(lessons):
        rows = len(lesson.tokens) - 2  # the last pair would guess a token that is not known
        local = torch.arange(lesson.start - 1, rows)
        index = local[:, None] + 2 + torch.arange(depth)
        ahead = lesson.tokens[index.clamp(max=len(lesson.tokens) - 1)]
        ahead = torch.where(index < len(lesson.tokens), ahead, -1)
        streams = torch.cat([lesson.streams[i][:rows] for i in layers], dim=1)
        parts.append(
            (
                lesson.tokens[1 : rows + 1],
                streams,
                torch.arange(rows),
                torch.full((rows,), number),
                local + begin,
                torch.full((len(local),), number),
                ahead,
            )
        )
        begin += rows
    tokens, streams, positions, home, anchors, owner, ahead = (torch.cat(part) for part in zip(*parts, strict=True))
    seen = (owner[:, None] == home) & (positions <= positions[anchors][:, None])
    return Pairs(tokens, streams, positions, anchors, ahead, seen)


class PairHead(nn.Module):
    """One layer over pairs; the kinds differ in what they do before and after it."""

    layer: DecoderLayer

    @property
    def output(self) -> nn.Linear | None:
        """An output matrix of its own; None if it uses the target's."""
        return None

    @classmethod
    def made_for(cls, config: Any, words: int) -> PairHead:
        """A fresh head for a target with this configuration, which guesses among this many words."""
        raise NotImplementedError

    @staticmethod
    def streams_of(config: Any) -> tuple[int, ...]:
        """The target's residual streams that it reads."""
        return (NORMED,)

    @staticmethod
    def published(name: str) -> str:
        """The name that a checkpoint has for one of its tensors."""
        return name

    def publish(self, target: Path, config: Any, words: Tensor | None, directory: Path) -> None:
        """Write a checkpoint as any server loads it; `words` are those it guesses among, None for all."""
        raise NotImplementedError

    def combine(self, streams: Tensor) -> Tensor:
        """The hidden state that is made of the target's streams."""
        return streams

    def enter(self, embedded: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """What the attention reads, and the residual."""
        raise NotImplementedError

    def leave(self, out: Tensor) -> tuple[Tensor, Tensor]:
        """What the output matrix reads, and the hidden state for the next guess."""
        raise NotImplementedError

    def later(self, embedding: Tensor, tokens: Tensor, onward: Tensor) -> tuple[Tensor, Tensor]:
        """Embeddings and hidden states of a guess after the first."""
        return F.embedding(tokens, embedding).to(onward.dtype), onward

    def unroll(self, study: Study, pairs: Pairs) -> list[Tensor]:
        """What the output matrix reads for each guess, [A, H] each."""
        attention = self.layer.self_attn
        x, residual = self.enter(study.embed(pairs.tokens), self.combine(pairs.streams))
        shared, own = attention.keys_values(x, pairs.positions), list[KeysValues]()
        x, residual, positions = x[pairs.anchors], residual[pairs.anchors], pairs.positions[pairs.anchors]
        read: list[Tensor] = []
        onward = residual  # the first guess does not read it
        for depth in range(pairs.ahead.shape[1]):
            if depth:
                tokens = pairs.ahead[:, depth - 1].clamp(min=0)
                x, residual = self.enter(*self.later(study.embedding, tokens, onward))
                own.append(attention.keys_values(x, positions + depth))
            attended = attention(x, positions + depth, shared, pairs.seen, own)
            final, onward = self.leave(self.layer.after(attended, residual))
            read.append(final)
        return read


class Deck:
    """Lessons dealt a few at a time, every one before any comes again."""

    def __init__(self, lessons: list[Any], hand: int, seed: int = 0) -> None:
        self._lessons, self._hand, self._dice = lessons, min(hand, len(lessons)), Random(seed)
        self._left: list[Any] = []

    def deal(self) -> list[Any]:
        """The next lessons."""
        if len(self._left) < self._hand:
            self._left = self._dice.sample(self._lessons, len(self._lessons))
        dealt, self._left = self._left[: self._hand], self._left[self._hand :]
        return dealt


def shake(module: nn.Module, seed: int = 0, scale: float = 0.04) -> None:
    """Initialise matrices with small random numbers; norms stay at one."""
    dice = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in module.parameters():
            if tensor.dim() > 1:
                tensor.normal_(0.0, scale, generator=dice)
