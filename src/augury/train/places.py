"""Positions of the answers with the target's last hidden state: what heads without attention are trained on."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from augury.model.target import NORMED
from augury.train.study import Lesson


@dataclass(slots=True)
class Places:
    """Every position that a draft starts from: its newest token, and the hidden state of the one before."""

    hidden: Tensor  # [P, H]: normed, of the token before the newest
    newest: Tensor  # int64 [P]
    ahead: Tensor  # int64 [P, depth]: what should be guessed, -1 past the end of the text

    @classmethod
    def of(cls, lessons: list[Lesson], depth: int) -> Places:
        """All positions of the answers."""
        hidden, newest, ahead = [], [], []
        for lesson in lessons:
            at = torch.arange(lesson.start, len(lesson.tokens) - 1)  # the newest token's
            index = at[:, None] + 1 + torch.arange(depth)
            inside = index < len(lesson.tokens)
            hidden.append(lesson.streams[NORMED][at - 1])
            newest.append(lesson.tokens[at])
            ahead.append(torch.where(inside, lesson.tokens[index.clamp(max=len(lesson.tokens) - 1)], -1))
        return cls(torch.cat(hidden), torch.cat(newest), torch.cat(ahead))
