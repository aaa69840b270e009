"""Master weights in float32 for a module that runs in bf16, whose rounding would lose small steps."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Masters:
    """The float32 master weights of a module; where it runs in float32, on a CPU, they are its own."""

    def __init__(self, module: nn.Module, dtype: torch.dtype) -> None:
        self._apart = dtype != torch.float32
        learning = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self.weights: list[Tensor] = [parameter.detach().float().clone() for parameter in learning]
        if not self._apart:
            self.weights = list(learning)
        for parameter in module.parameters():  # these stay the same objects; rotary frequencies stay precise
            parameter.data = parameter.data.to(dtype)
        self._learning = learning

    def take_gradients(self) -> None:
        """Copy the module's gradients to the master weights, before the optimiser's step."""
        if self._apart:
            for weight, parameter in zip(self.weights, self._learning, strict=True):
                assert parameter.grad is not None
                weight.grad = parameter.grad.float()

    @torch.no_grad()
    def hand_down(self) -> None:
        """Copy the master weights to the module, after the optimiser's step."""
        if self._apart:
            torch._foreach_copy_([parameter.data for parameter in self._learning], self.weights)

    @torch.no_grad()
    def load(self, weights: list[Tensor]) -> None:
        """Take over the weights of a run that is resumed."""
        for weight, kept in zip(self.weights, weights, strict=True):
            weight.copy_(kept)
        self.hand_down()
