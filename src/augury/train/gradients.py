"""The loss of a batch and its gradients; on a GPU each shape of batch is recorded once and replayed.

A head is small: a GPU is done with each of its thousand kernels before Python has launched the next. Replayed as one
CUDA graph they follow each other without a gap. The target runs outside of it, while the previous graph still runs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from augury.train.batches import Batch
from augury.train.losses import Loss
from augury.train.trainee import Trainee, trainable


class Gradients:
    """Adds a batch's gradients to those of the parameters."""

    def __init__(self, trainee: Trainee, measure: Loss) -> None:
        self._trainee, self._measure = trainee, measure
        self._parameters = trainable(trainee.module)
        self._recorded: dict[tuple[object, ...], tuple[torch.cuda.CUDAGraph, Batch, Tensor]] = {}
        self._pool: Any = None  # recordings never run side by side, so they share their memory

    def clear(self) -> None:
        """Set the gradients to zero; their memory stays, because recordings write into it."""
        for parameter in self._parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            else:
                parameter.grad.zero_()

    def add(self, batch: Batch, share: float) -> Tensor:
        """Add the gradients of a batch, times its `share` of the step; returns the loss, times the same."""
        if batch.tokens.device.type != "cuda" or not self._trainee.replays:
            return self._run(batch, share)
        key = (batch.tokens.shape, share)
        if key not in self._recorded:
            self._recorded[key] = self._record(batch, share)
        graph, mine, loss = self._recorded[key]
        for kept, given in zip(tensors_of(mine), tensors_of(batch), strict=True):
            kept.copy_(given)
        graph.replay()
        return loss.clone()

    def _run(self, batch: Batch, share: float) -> Tensor:
        loss = self._trainee.loss(batch, self._measure) * share
        loss.backward()
        return loss.detach()

    def _record(self, batch: Batch, share: float) -> tuple[torch.cuda.CUDAGraph, Batch, Tensor]:
        mine = Batch(*(tensor.clone() for tensor in tensors_of(batch)))
        before = [parameter.grad.clone() for parameter in self._parameters if parameter.grad is not None]
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # libraries allocate their workspaces, which no recording may do
            self._run(mine, share)
        torch.cuda.current_stream().wait_stream(side)
        for parameter, gradient in zip(self._parameters, before, strict=True):
            assert parameter.grad is not None
            parameter.grad.copy_(gradient)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            loss = self._run(mine, share)
        self._pool = self._pool or graph.pool()
        return graph, mine, loss


def tensors_of(batch: Batch) -> tuple[Tensor, ...]:
    """The tensors of a batch, not copied."""
    return batch.tokens, batch.starts, batch.lengths, batch.streams, batch.normed, batch.noise
