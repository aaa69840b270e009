"""Weights that learn in float32 while the module runs in bf16: small steps would be lost in its rounding."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Masters:
    """The float32 weights behind a module's own; on a CPU they are the module's own."""

    def __init__(self, module: nn.Module, dtype: torch.dtype) -> None:
        self._apart = dtype != torch.float32
        learning = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self.weights: list[Tensor] = [parameter.detach().float().clone() for parameter in learning]
        if not self._apart:
            self.weights = list(learning)
        for parameter in module.parameters():  # they stay the same objects; rotary frequencies stay precise
            parameter.data = parameter.data.to(dtype)
        self._learning = learning

    def take_gradients(self) -> None:
        """Those of the module, before the optimiser's step."""
        if self._apart:
            for weight, parameter in zip(self.weights, self._learning, strict=True):
                assert parameter.grad is not None
                weight.grad = parameter.grad.float()

    @torch.no_grad()
    def hand_down(self) -> None:
        """To the module, after the optimiser's step."""
        if self._apart:
            torch._foreach_copy_([parameter.data for parameter in self._learning], self.weights)

    @torch.no_grad()
    def load(self, weights: list[Tensor]) -> None:
        """Those of a run that goes on."""
        for weight, kept in zip(self.weights, weights, strict=True):
            weight.copy_(kept)
        self.hand_down()
