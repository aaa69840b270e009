"""The likeliest tokens of a line, for drafters: one operation, the face chosen by device."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from augury.kernels.arrays import array_of, lasting, with_array
from augury.kernels.faces import face


def argmax(logits: Tensor, targets: Tensor | None = None) -> Tensor:
    """The likeliest token of every line [L, V], int64 [L], mapped through `targets` [V] if given."""
    if face(logits.device) == "triton":
        from augury.kernels import peak_triton

        return peak_triton.argmax(logits, targets)
    if face(logits.device) == "numba" and logits.dtype == torch.float32:
        return _peaks(logits, targets)
    best = logits.argmax(1)
    return best if targets is None else targets[best]


def _peaks(logits: Tensor, targets: Tensor | None) -> Tensor:
    """By the kernel of the target's greedy tokens: torch takes 50 microseconds for 8,192 scores, this half of it."""
    from augury.kernels.verify_numba import greedy_lines

    best = np.empty(logits.shape[0], np.int64)
    greedy_lines(0, len(best), array_of(logits), best)
    return with_array(best if targets is None else lasting(targets)[best])


def top_children(logits: Tensor, k: int, targets: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The k likeliest tokens of every line and their log-probabilities, [..., k] both."""
    if face(logits.device) == "triton" and k <= 16:
        from augury.kernels import top_triton

        tokens, logprobs = top_triton.top_children(logits.flatten(0, -2), k, targets)
        return tokens.view(*logits.shape[:-1], k), logprobs.view(*logits.shape[:-1], k)
    found = torch.log_softmax(logits.float(), dim=-1).topk(k, dim=-1)
    return found.indices if targets is None else targets[found.indices], found.values


def widened(logits: Tensor, targets: Tensor | None, vocab: int) -> Tensor:
    """Scores over a draft vocabulary as scores over the target's; a token that is not in it gets -inf."""
    if targets is None:
        return logits
    wide = logits.new_full((len(logits), vocab), float("-inf"))
    return wide.scatter(1, targets.expand(len(logits), -1), logits)
