"""DFlash2's convolution: around attention and MLP, a row is mixed with the rows just before it in its block.

Each channel has a fixed kernel of a few taps, one for what goes in and one for what comes out. To both a correction is
added that depends on the row and is shared by a group of channels; one matrix makes it from what goes in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from augury.model.layers import Linear


@dataclass(slots=True)
class GroupedConv:
    """The weights around one attention or MLP."""

    base: Tensor  # [2, taps, H]: going in, coming out
    project: Linear  # [2 * taps * groups, H]
    group: int  # channels that share a correction

    def corrections(self, x: Tensor) -> Tensor:
        """What rows [R, H] add to their kernels, [R, 2, taps, groups]."""
        return self.project(x).float().view(len(x), 2, self.base.shape[1], -1)

    def mixed(self, x: Tensor, side: int, corrections: Tensor, place: Tensor) -> Tensor:
        """Rows [R, H] mixed with those before them; `place` [R] is a row's index in its block, whose rows are adjacent.

        Summed in float32, whatever the type of the rows.
        """
        grouped = x.float().unflatten(1, (-1, self.group))
        total = torch.zeros_like(grouped)
        for tap in range(self.base.shape[1]):
            kernel = self.base[side, tap].float().view_as(grouped[0]) + corrections[:, side, tap, :, None]
            # The first rows wrap around to the last; no block reaches so far back.
            total = total + torch.where((place >= tap)[:, None, None], kernel * grouped.roll(tap, 0), 0.0)
        return total.flatten(1).to(x.dtype)


def around(conv: GroupedConv | None, inner: Callable[[Tensor], Tensor], x: Tensor, place: Tensor) -> Tensor:
    """A part of a layer run on rows [R, H], with the convolution around it where there is one."""
    if conv is None:
        return inner(x)
    corrections = conv.corrections(x)
    return conv.mixed(inner(conv.mixed(x, 0, corrections, place)), 1, corrections, place)
