"""What a drafter is worth: the acceptance length that its greedy drafts would reach on held-out answers.

The target's greedy answer is known, so no target need run: a draft is accepted as far as it is the answer. Steps begin
where the one before ended, as they do when the drafter is served.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import torch
from torch import Tensor

from augury.train.batches import Batch, Teacher
from augury.train.corpus import Corpus
from augury.train.trainee import Trainee


class Acceptance(NamedTuple):
    """Of one held-out set."""

    histogram: tuple[int, ...]  # steps by the number of tokens they accepted
    per_text: float  # the mean of the texts' own lengths
    lengths: tuple[float, ...]  # tokens a step with drafts of 1, 2, ... tokens: each is the beginning of a longer one

    @property
    def drafts(self) -> int:
        """Steps that drafted."""
        return sum(self.histogram)

    @property
    def accepted(self) -> list[int]:
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


def measure(trainee: Trainee, teacher: Teacher, held: Corpus, tokens: int, size: int, longest: int) -> Acceptance:
    """Drafts of so many tokens over a whole held-out set."""
    trainee.module.eval()
    counts = [Counter[int]() for _ in range(tokens)]  # of steps by what they accepted, for drafts of 1, 2, ... tokens
    lengths: list[float] = []
    order = sorted(range(len(held)), key=lambda number: int(held.lengths[number]))
    for first in range(0, len(order), size):
        batch = teacher.batch(held, order[first : first + size], longest)
        right = agreed(trainee.drafts(batch, tokens), batch).cpu()
        for line, start, length in zip(right, batch.starts.tolist(), batch.lengths.tolist(), strict=True):
            for k in range(1, tokens + 1):
                counts[k - 1].update(steps := walk(line.clamp(max=k).tolist(), start, length))
            if steps:
                lengths.append(1 + sum(steps) / len(steps))
    trainee.module.train()
    return Acceptance(
        tuple(counts[-1][count] for count in range(tokens + 1)),
        sum(lengths) / max(1, len(lengths)),
        tuple(1 + sum(k * n for k, n in some.items()) / max(1, some.total()) for some in counts),
    )


def agreed(drafts: Tensor, batch: Batch) -> Tensor:
    """How many tokens of each draft are the text, int64 [B, R]."""
    rows, depth = drafts.shape[1:]
    index = torch.arange(rows, device=drafts.device)[:, None] + 2 + torch.arange(depth, device=drafts.device)
    known = index < batch.lengths[:, None, None]
    text = batch.tokens[:, index.clamp(max=batch.tokens.shape[1] - 1)]
    return ((drafts == text) & known).long().cumprod(2).sum(2)


def walk(agreed: list[int], start: int, length: int) -> list[int]:
    """Accepted tokens of each step: the prompt's pass gives the first token, and every step one of the target's own."""
    newest, counts = start, []
    while newest < length - 1:
        counts.append(agreed[newest - 1])
        newest += counts[-1] + 1
    return counts
