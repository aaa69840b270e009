"""Losses between the target's distribution and the drafter's, one for each row.

Each takes the target's logits and the drafter's, [R, V] both. Acceptance under rejection sampling is the mass the two
share, sum(min(p, q)); KL has the better gradient far from it, and total variation close to it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

Loss = Callable[[Tensor, Tensor], Tensor]


def kl(target: Tensor, drafter: Tensor) -> Tensor:
    """KL(p || q)."""
    return F.kl_div(drafter.log_softmax(-1), target.log_softmax(-1), log_target=True, reduction="none").sum(-1)


def cross_entropy(target: Tensor, drafter: Tensor) -> Tensor:
    """Against the target's likeliest token alone."""
    return F.cross_entropy(drafter, target.argmax(-1), reduction="none")


def shared_mass(target: Tensor, drafter: Tensor) -> Tensor:
    """sum(min(p, q)) of every row: the chance that a drafted token is accepted, [R]."""
    return torch.minimum(target.softmax(-1), drafter.softmax(-1)).sum(-1)


def total_variation(target: Tensor, drafter: Tensor) -> Tensor:
    """1 - sum(min(p, q))."""
    return 1 - shared_mass(target, drafter)


def lk_hybrid(target: Tensor, drafter: Tensor) -> Tensor:
    """KL while the two share little, total variation once they share much: exp(-3 * shared mass) weighs them."""
    log_p, log_q = target.log_softmax(-1), drafter.log_softmax(-1)
    shared = torch.minimum(log_p.exp(), log_q.exp()).sum(-1)
    weight = torch.exp(-3 * shared.detach())
    divergence = (log_p.exp() * (log_p - log_q)).sum(-1)
    return weight * divergence + (1 - weight) * (1 - shared)


def d_pace(target: Tensor, drafter: Tensor) -> Tensor:
    """The cross-entropy; what sets it apart is how guesses are weighed (pace.py)."""
    return cross_entropy(target, drafter)


LOSSES: dict[str, Loss] = {"kl": kl, "ce": cross_entropy, "tv": total_variation, "lk": lk_hybrid, "dpace": d_pace}
