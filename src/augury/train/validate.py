"""What a drafter is worth: the acceptance length that its drafts would reach on held-out answers.

The target's answer is known, so nothing need be generated: a greedy draft is accepted as far as it is the answer, and a
sampled one with a chance that the two distributions tell. Steps begin where the one before ended, as they do when the
drafter is served; over chances, the expected number of steps is counted, so that no dice are rolled.
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
    """Of one held-out set."""

    histogram: tuple[float, ...]  # steps by the number of tokens they accepted
    per_text: float  # the mean of the texts' own lengths
    lengths: tuple[float, ...]  # tokens a step with drafts of 1, 2, ... tokens: each is the beginning of a longer one

    @property
    def drafts(self) -> float:
        """Steps that drafted."""
        return sum(self.histogram)

    @property
    def accepted(self) -> list[float]:
        """Steps that accepted so many tokens and more, by position."""
        return [sum(self.histogram[count:]) for count in range(1, len(self.histogram))]

    @property
    def by_position(self) -> list[float]:
        """The same as shares of all steps."""
        return [count / max(1, self.drafts) for count in self.accepted]

    @property
    def length(self) -> float:
        """Tokens a step, the target's own included."""
        return 1 + sum(self.by_position)


def measure(
    trainee: Trainee, teacher: Teacher, held: Corpus, tokens: int, size: int, longest: int, temperature: float = 0.0
) -> Acceptance:
    """Drafts of so many tokens over a whole held-out set, which is greedy text or drawn with that temperature."""
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
    """How likely each token of a draft from each row is accepted if it is the text up to there, [B, R, tokens].

    A greedy draft is the text or is not. Where text is drawn from p and drafts from q, the token y of the text was
    drafted with chance min(p(y), q(y)) / p(y): what rejection sampling keeps of q is the common part.
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
    """Logarithms of the chances of one word of every row [B, R] of states [B, R, H]; -1 is a word that is not there."""
    parts = []
    for some, place in zip(states.flatten(0, 1).split(CHUNK), places.flatten().split(CHUNK), strict=True):
        law = (score(some).float() / temperature).log_softmax(1)
        chance = law.gather(1, place.clamp(min=0)[:, None])[:, 0]
        parts.append(chance.masked_fill(place < 0, -math.inf))
    return torch.cat(parts).view(places.shape)


def ahead(batch: Batch, depth: int) -> tuple[Tensor, Tensor]:
    """Where the tokens lie that each row should draft, int64 [R, depth], and whether they are known, [B, R, depth]."""
    rows, device = batch.tokens.shape[1] - 1, batch.tokens.device
    index = torch.arange(rows, device=device)[:, None] + 2 + torch.arange(depth, device=device)
    return index.clamp(max=rows), index < batch.lengths[:, None, None]


def agreed(drafts: Tensor, batch: Batch) -> Tensor:
    """How many tokens of each draft are the text, int64 [B, R]."""
    index, known = ahead(batch, drafts.shape[2])
    return ((drafts == batch.tokens[:, index]) & known).long().cumprod(2).sum(2)


def walk(lines: list[list[float]], start: int, length: int) -> list[float]:
    """Expected steps that accept 0, 1, ... tokens, given how likely each token of every row's draft is accepted.

    The prompt's pass gives the first token, and every step one of the target's own.
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
