"""A loss through an output matrix, a chunk of rows at a time, with its gradient computed in the forward pass.

Logits of all rows at once would be the largest thing in memory by far, and recomputing them for the gradient half of
the work: each chunk's gradient is computed while its logits are there, and scaled in the backward pass. On a GPU the
code between the matrix products is compiled: run op by op it would read and write the logits twenty times.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from augury.train.losses import Loss

CHUNK = 8192  # rows whose logits are held at a time
LossesAndGradient = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


def linear_loss(states: Tensor, head: Tensor, taught: Tensor, rows: Tensor, weights: Tensor, measure: Loss) -> Tensor:
    """The weighted sum of the losses of `states @ head.T` against `taught @ rows.T`; gradients for states and head."""
    found: Tensor = _LinearLoss.apply(states, head, taught, rows, weights, measure)
    return found


@torch.no_grad()
def row_losses(states: Tensor, head: Tensor, taught: Tensor, rows: Tensor, measure: Loss) -> Tensor:
    """The loss of each row, without gradients, float32 [R]."""
    matrix, of_logits = head.to(states.dtype), _losses(measure, states.is_cuda)
    parts = [slice(first, first + CHUNK) for first in range(0, len(states), CHUNK)]
    found = [of_logits(taught[part].to(rows.dtype) @ rows.T, states[part] @ matrix.T) for part in parts]
    return torch.cat(found)


@cache
def _losses(measure: Loss, compiled: bool) -> Loss:
    def plain(target: Tensor, drafter: Tensor) -> Tensor:
        return measure(target.float(), drafter.float())

    return torch.compile(plain) if compiled else plain


@cache
def _losses_and_gradient(measure: Loss, compiled: bool) -> LossesAndGradient:
    """A function of drafter logits, target logits and row weights: the rows' losses, and the drafter's gradient."""

    def both(drafter: Tensor, target: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        found: Any = torch.func.vjp(lambda mine: measure(target.float(), mine.float()), drafter)
        losses, pull_back = found
        return losses, pull_back(weights)[0]

    return torch.compile(both) if compiled else both


class _LinearLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, states: Tensor, head: Tensor, taught: Tensor, rows: Tensor, weights: Tensor, measure: Loss
    ) -> Tensor:
        total = states.new_zeros((), dtype=torch.float32)
        by_states = torch.empty_like(states)
        by_head = torch.zeros_like(head, dtype=torch.float32) if head.requires_grad else None
        matrix, of_logits = head.to(states.dtype), _losses_and_gradient(measure, states.is_cuda)
        for first in range(0, len(states), CHUNK):
            part = slice(first, first + CHUNK)
            target = taught[part].to(rows.dtype) @ rows.T
            weight = weights[part].float()
            losses, gradient = of_logits(states[part] @ matrix.T, target, weight)
            total += losses @ weight
            by_states[part] = gradient @ matrix
            if by_head is not None:
                by_head += gradient.T @ states[part]
        ctx.save_for_backward(by_states, by_head)
        ctx.dtype = head.dtype
        return total

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> Any:
        by_states, by_head = ctx.saved_tensors
        scale = outer[0]
        to_head = None if by_head is None else (by_head * scale).to(ctx.dtype)
        return by_states * scale.to(by_states.dtype), to_head, None, None, None, None
