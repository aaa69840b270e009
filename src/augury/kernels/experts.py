"""Mixtures of experts: the torch reference, for any device.

A router scores all experts for each row; the `count` most likely run it, and what they make of it is added up in the
order of their likelihood, each weighed by its share. Between equal experts the one with the lower number is chosen, so
a row's experts do not depend on the rows that share the pass.
"""

from __future__ import annotations

import torch
from torch import Tensor

from augury.kernels.fused import linear, silu_mul


def route(logits: Tensor, count: int, normalise: bool) -> tuple[Tensor, Tensor]:
    """See Ops.route."""
    likely = torch.softmax(logits.float(), -1)
    ordered, experts = torch.sort(likely, dim=-1, descending=True, stable=True)
    shares, experts = ordered[:, :count], experts[:, :count]
    return shares / shares.sum(-1, keepdim=True) if normalise else shares, experts


def run_experts(x: Tensor, gate_up: Tensor, down: Tensor, experts: Tensor, shares: Tensor) -> Tensor:
    """See Ops.run_experts; every expert runs every row, so that no shape depends on what was chosen."""
    made = x.new_zeros(*experts.shape, x.shape[1])
    for number in range(len(gate_up)):
        one = linear(silu_mul(linear(x, gate_up[number])), down[number])
        made = torch.where((experts == number)[..., None], one[:, None], made)
    total = torch.zeros_like(x, dtype=torch.float32)
    for place in range(experts.shape[1]):
        total = total + made[:, place].float() * shares[:, place, None]
    return total.to(x.dtype)
