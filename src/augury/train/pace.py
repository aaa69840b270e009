"""D-PACE: weighs each guess of a draft in the loss by how likely the drafter gets it and those before it right.

The expected accepted length of a draft is the sum, over its prefixes, of the chance that all of the prefix is right. A
guess is part of every prefix that reaches it, so it weighs the sum of their present chances, and weight moves on to
later guesses as early ones are learnt.
"""

from __future__ import annotations

import torch
from torch import Tensor

SOFTENED = 0.5  # a in the formula: no chance counts as less than this, so that a guess after a bad one still counts


@torch.no_grad()
def pace(chances: list[Tensor], counted: list[Tensor]) -> list[Tensor]:
    """Weights [B, n] of every guess from the chances [B, n] of the right token; guess i + 1 may cover only the first
    rows of guess i. With q = (1 - a) chance + a: w_j = sum over m >= j of the product of q_i for i <= m."""
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
