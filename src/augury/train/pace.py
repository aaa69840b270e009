"""D-PACE: what each guess of a draft weighs in the loss, by how sure the drafter is of it and of those before it.

The expected length of a draft is the sum of the chances that its beginnings are right. A guess has a part in every
beginning that reaches it, so it weighs what those are worth now, and weights move on to later guesses as early ones are
learnt.
"""

from __future__ import annotations

import torch
from torch import Tensor

SOFTENED = 0.5  # so much of a chance is taken for granted: a guess behind a bad one still counts for something


@torch.no_grad()
def pace(chances: list[Tensor], counted: list[Tensor]) -> list[Tensor]:
    """Weights [B, n] of every guess from the chances [B, n] of the right token; guess i + 1 may be made from the first
    rows of guess i alone. With q = (1 - a) chance + a: w_j = sum over m >= j of the product of q_i for i <= m."""
    products, running = list[Tensor](), torch.ones_like(chances[0])
    for chance, known in zip(chances, counted, strict=True):
        running = running[:, : chance.shape[1]]
        running = running * torch.where(known, (1 - SOFTENED) * chance + SOFTENED, 1.0)
        products.append(running * known)
    weights, later = list[Tensor](), torch.zeros_like(products[-1])
    for product, known in zip(reversed(products), reversed(counted), strict=True):
        rest = product.clone()
        rest[:, : later.shape[1]] += later
        later = rest
        weights.append(rest * known)
    return weights[::-1]
