"""A loss behind an output matrix, a chunk of rows at a time, its gradient taken on the way forward.

Logits of all rows at once would be the largest thing in memory by far, and computing them again for the gradient half
of the work: each chunk's gradient is taken while its logits are there, and scaled when the backward pass comes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from augury.train.losses import Loss

CHUNK = 8192  # rows whose logits are held at a time


def linear_loss(states: Tensor, head: Tensor, taught: Tensor, rows: Tensor, weights: Tensor, measure: Loss) -> Tensor:
    """The weighted sum of the losses of `states @ head.T` against `taught @ rows.T`; gradients for states and head."""
    found: Tensor = _LinearLoss.apply(states, head, taught, rows, weights, measure)  # type: ignore[no-untyped-call]
    return found


def _of_chunk(states: Tensor, head: Tensor, taught: Tensor, rows: Tensor, weights: Tensor, measure: Loss) -> Tensor:
    with torch.no_grad():
        target = (taught.to(rows.dtype) @ rows.T).float()
    return measure(target, (states @ head.to(states.dtype).T).float()) @ weights.float()


class _LinearLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, states: Tensor, head: Tensor, taught: Tensor, rows: Tensor, weights: Tensor, measure: Loss
    ) -> Tensor:
        total = states.new_zeros((), dtype=torch.float32)
        by_states = torch.empty_like(states)
        by_head = torch.zeros_like(head, dtype=torch.float32) if head.requires_grad else None
        for first in range(0, len(states), CHUNK):
            part = slice(first, first + CHUNK)
            with torch.enable_grad():
                mine, matrix = states[part].detach().requires_grad_(), head.detach().requires_grad_(by_head is not None)
                loss = _of_chunk(mine, matrix, taught[part], rows, weights[part], measure)
                found = torch.autograd.grad(loss, [mine] if by_head is None else [mine, matrix])
            total += loss.detach()
            by_states[part] = found[0]
            if by_head is not None:
                by_head += found[1]
        ctx.save_for_backward(by_states, by_head)
        ctx.dtype = head.dtype
        return total

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> Any:
        by_states, by_head = ctx.saved_tensors
        scale = outer[0]
        to_head = None if by_head is None else (by_head * scale).to(ctx.dtype)
        return by_states * scale.to(by_states.dtype), to_head, None, None, None, None
