"""Decoder layers one by one, each operation by itself: for faces that have no call for more."""

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
        x: Tensor,
        residual: Tensor,
        view: Any,
        stores: tuple[Sequence[Tensor], Sequence[Tensor]],
        norms: Sequence[Tensor],
        kept: Sequence[int] = (),
    ) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Run all layers; see LayersRun."""
        streams = [residual]
        for layer, keys, values, norm in zip(self.layers, *stores, norms, strict=True):
            x, residual = layer(x, residual, view, keys, values, norm)
            streams.append(residual)
        return x, residual, [streams[n] for n in kept]
