"""Log-probabilities that go back to the user, from the target's raw logits, as vLLM reports them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class TokenLogprobs(NamedTuple):
    """Log-probabilities of some tokens, and of the most likely ones in their places."""

    logprob: Tensor  # float32 [M]
    rank: Tensor  # int64 [M]: tokens at least as likely, so the most likely has rank 1
    top_ids: Tensor  # int64 [M, k]
    top_logprobs: Tensor  # float32 [M, k]


def score(logits: Tensor, tokens: Tensor, k: int) -> TokenLogprobs:
    """Score one token per row of raw logits [M, V] and list the k most likely (all, if there are fewer)."""
    logprobs = torch.log_softmax(logits, dim=-1, dtype=torch.float32)
    own = logprobs.gather(1, tokens[:, None])
    top = logprobs.topk(min(k, logits.shape[1]), dim=-1)
    return TokenLogprobs(own[:, 0], (logprobs >= own).sum(1), top.indices, top.values)
