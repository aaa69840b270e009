"""Fitting a head: Adam with a warm-up and a cosine decay, until the loss is small or the steps are spent."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

MEMORY = 0.8  # decay of the running loss, since batches differ
SMALL = 0.01


def fit(
    module: nn.Module,
    loss: Callable[[], Tensor],
    steps: int,
    rate: float = 3e-3,
    tick: Callable[[float], None] = lambda _: None,
) -> float:
    """Train a module's trainable parameters; `tick` sees the running loss after every step; returns the last."""
    parameters = [tensor for tensor in module.parameters() if tensor.requires_grad]
    optimiser = torch.optim.Adam(parameters, lr=rate)
    warm_up = max(1, steps // 20)
    running: float | None = None
    for step in range(steps):
        for group in optimiser.param_groups:
            group["lr"] = rate * scale(step, steps, warm_up)
        optimiser.zero_grad()
        value = loss()
        value.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimiser.step()
        now = float(value.item())
        running = now if running is None else MEMORY * running + (1 - MEMORY) * now
        tick(running)
        if running < SMALL:
            break
    return running if running is not None else math.inf


def scale(step: int, steps: int, warm_up: int, floor: float = 0.1) -> float:
    """The rate as a share of its peak: a linear warm-up, then a cosine decay to `floor`."""
    if step < warm_up:
        return (step + 1) / warm_up
    passed = (step - warm_up) / max(1, steps - warm_up)
    return floor + (1 - floor) * (1 + math.cos(math.pi * passed)) / 2
