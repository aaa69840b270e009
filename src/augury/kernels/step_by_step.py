"""Decoder layers one by one, each step by step: what faces do that have no call for more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from augury.model.layers import Layer


@dataclass(frozen=True, slots=True)
class StepByStep:
    """See LayersRun."""

    layers: Sequence[Layer]

    def __call__(
        self,
        span: range,
        x: Tensor,
        residual: Tensor,
        view: Any,
        keys: Sequence[Tensor],
        values: Sequence[Tensor],
        norms: Sequence[Tensor],
    ) -> tuple[Tensor, Tensor]:
        """Run the layers of a span."""
        for n in span:
            x, residual = self.layers[n](x, residual, view, keys[n], values[n], norms[n])
        return x, residual
