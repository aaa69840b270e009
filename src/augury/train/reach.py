"""The rows that each guess is trained from: all of them for the first guess, fewer for later ones.

A guess counts only where those before it were right, so later ones matter less and cost as much: each depth keeps a
share of the rows before it, drawn at random (PARD's conditional drop). A row that reaches a depth has reached all
before it, because what it guesses rests on them.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from augury.train.batches import Batch

KEPT, LEAST = 0.75, 0.2  # of the rows one depth before, and of all rows

Reach = list[Tensor]  # by guess, the rows int64 [n] that it is made from; each is a beginning of the one before


def reach(batch: Batch, depth: int) -> Reach:
    """Rows drawn for a step, the same for all texts of the batch; those of answers come first."""
    drawn = (batch.noise[0, :-1] + places(batch, 0).any(0)).argsort(descending=True)
    return [drawn[: math.ceil(max(KEPT**i, LEAST) * len(drawn))] for i in range(depth)]


def all_rows(batch: Batch, depth: int) -> Reach:
    """Every row, for every guess."""
    return [torch.arange(batch.tokens.shape[1] - 1, device=batch.tokens.device)] * depth


def places(batch: Batch, guess: int) -> Tensor:
    """Rows whose guess is a known token of an answer, bool [B, R]; row r guesses token r + 2 + guess."""
    row = torch.arange(batch.tokens.shape[1] - 1, device=batch.tokens.device)
    return (row >= batch.starts[:, None] - 1) & (row + 2 + guess < batch.lengths[:, None])
