"""Validates a drafter: the acceptance length that its drafts would reach on held-out answers.

The target's answer is known, so nothing need be generated: a greedy draft is accepted as far as it matches the answer,
and a sampled one with a probability that follows from the two distributions. Steps begin where the previous one ended,
as in serving; for sampled text the expected number of steps is computed, so that nothing is drawn at random.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import zip_longest
from typing import NamedTuple

import torch
from torch import Tensor

from augury.train.batches import Batch, Teacher
from augury.train.corpus import Corpus
from augury.train.linear_loss import CHUNK
from augury.train.trainee import Trainee


class Acceptance(NamedTuple):
    """The acceptance on one held-out set."""

    histogram: tuple[float, ...]  # number of steps, by how many tokens they accepted
    per_text: float  # the mean of the texts' own lengths
    lengths: tuple[float, ...]  # tokens per step with drafts of 1, 2, ... tokens: each is a prefix of a longer one

    @property
    def drafts(self) -> float:
        """Steps that drafted."""
        return sum(self.histogram)

    @property
    def accepted(self) -> list[float]:
        """The number of steps that accepted the token at each position."""
        return [sum(self.histogram[count:]) for count in range(1, len(self.histogram))]

    @property
    def by_position(self) -> list[float]:
        """The same as shares of all steps."""
        return [count / max(1, self.drafts) for count in self.accepted]

    @property
    def length(self) -> float:
        """Tokens per step, the target's own included."""
        return 1 + sum(self.by_position)


def measure(
    trainee: Trainee, teacher: Teacher, held: Corpus, tokens: int, size: int, longest: int, temperature: float = 0.0
) -> Acceptance:
    """Measure drafts of `tokens` tokens over a held-out set, whose text is greedy or was sampled with `temperature`."""
    trainee.module.eval()
    counts = [
        [0.0] * (tokens + 1) for _ in range(tokens)
    ]  # steps by what they accepted, for drafts of 1, 2, ... tokens
    lengths: list[float] = []
    order = sorted(range(len(held)), key=lambda number: int(held.lengths[number]))
    for first in range(0, len(order), size):
        batch = teacher.batch(held, order[first : first + size], longest)
        right = chances(trainee, teacher, batch, tokens, temperature).cpu().tolist()
        for lines, start, length in zip(right, batch.starts.tolist(), batch.lengths.tolist(), strict=True):
            for k in range(1, tokens + 1):
                steps = walk([line[:k] for line in lines], start, length)
                counts[k - 1] = [a + b for a, b in zip_longest(counts[k - 1], steps, fillvalue=0.0)]
            if sum(steps):
                lengths.append(_length(steps))
    trainee.module.train()
    return Acceptance(tuple(counts[-1]), sum(lengths) / max(1, len(lengths)), tuple(map(_length, counts)))


def _length(steps: list[float]) -> float:
    return 1 + sum(k * n for k, n in enumerate(steps)) / max(1, sum(steps))


def chances(trainee: Trainee, teacher: Teacher, batch: Batch, tokens: int, temperature: float) -> Tensor:
    """The chance that each token of each row's draft is accepted, if the draft is the text up to there, [B, R, tokens].

    A greedy draft is the text or is not. Where text is sampled from p and drafts from q, the token y of the text was an
    accepted draft with chance min(p(y), q(y)) / p(y): rejection sampling keeps the part of q that p shares.
    """
    if not temperature:
        right = agreed(trainee.drafts(batch, tokens), batch)
        return (right[..., None] > torch.arange(tokens, device=right.device)).float()
    index, known = ahead(batch, tokens)
    found = []
    for i, states in enumerate(trainee.behind_text(batch, tokens)):
        token = batch.tokens.gather(1, index[:, i].expand(len(batch.tokens), -1))
        q = log_chances(states, trainee.logits, trainee.places_of(token), temperature)
        p = log_chances(batch.normed.roll(-1 - i, 1)[:, :-1], lambda x: x @ teacher.head.T, token, temperature)
        found.append((q - p).clamp(max=0).exp())
    return torch.stack(found, dim=2) * known


@torch.no_grad()
def log_chances(states: Tensor, score: Callable[[Tensor], Tensor], places: Tensor, temperature: float) -> Tensor:
    """Log-probabilities of one token per row [B, R] from states [B, R, H]; place -1 is a token that is not there."""
    parts = []
    for some, place in zip(states.flatten(0, 1).split(CHUNK), places.flatten().split(CHUNK), strict=True):
        law = (score(some).float() / temperature).log_softmax(1)
        chance = law.gather(1, place.clamp(min=0)[:, None])[:, 0]
        parts.append(chance.masked_fill(place < 0, -math.inf))
    return torch.cat(parts).view(places.shape)


def ahead(batch: Batch, depth: int) -> tuple[Tensor, Tensor]:
    """Indices of the tokens that each row should draft, int64 [R, depth], and whether they are known, [B, R, depth]."""
    rows, device = batch.tokens.shape[1] - 1, batch.tokens.device
    index = torch.arange(rows, device=device)[:, None] + 2 + torch.arange(depth, device=device)
    return index.clamp(max=rows), index < batch.lengths[:, None, None]


def agreed(drafts: Tensor, batch: Batch) -> Tensor:
    """How many tokens of each draft match the text before the first that does not, int64 [B, R]."""
    index, known = ahead(batch, drafts.shape[2])
    return ((drafts == batch.tokens[:, index]) & known).long().cumprod(2).sum(2)


def walk(lines: list[list[float]], start: int, length: int) -> list[float]:
    """Expected number of steps that accept 0, 1, ... tokens, given the chance of each token of every row's draft.

    Prefill gives the first token, and every step one of the target's own.
    """
    most = len(lines[0])
    counts, visits = [0.0] * (most + 1), [0.0] * (length + most + 1)
    if start >= length:  # the text is cut before its answer
        return counts
    visits[start] = 1.0
    for newest in range(start, length - 1):
        left = visits[newest]
        for count, chance in enumerate([*lines[newest - 1], 0.0] if left else ()):
            ends = left * (1 - chance)
            counts[count] += ends
            visits[newest + count + 1] += ends
            left -= ends
    return counts
