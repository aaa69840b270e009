"""Low-rank additions to a matrix, chosen row by row: LoRA adapters as a device applies them.

All adapters of one projection lie in one stack. A fused projection (q, k and v, say) has several parts, each with a
product of its own: part p takes columns p * rank .. of the first factor and gives columns bounds[p-1] .. bounds[p].
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

FEW, MANY = 4, 16  # ranks are filled up to a multiple of the first, columns of the first factor of the second


@dataclass(slots=True)
class LowRankStack:
    """The factors of every adapter, scaled and transposed; a place that is not in use holds zeros."""

    down: Tensor  # [S, in, parts * rank], and columns of zeros that fill up its lines
    up: Tensor  # [S, rank, out]
    bounds: Tensor  # int64 [parts]: where each part's columns of the output end

    @property
    def rank(self) -> int:
        """The largest rank that there is room for."""
        return self.up.shape[1]

    @classmethod
    def zeros(
        cls, places: int, width: int, parts: list[int], rank: int, dtype: torch.dtype, device: torch.device
    ) -> LowRankStack:
        """Room for so many adapters of a projection from `width` to parts of these sizes."""
        ends = torch.tensor(parts).cumsum(0)
        rank = -(-rank // FEW) * FEW
        return cls(
            torch.zeros(places, width, -(-len(parts) * rank // MANY) * MANY, dtype=dtype, device=device),
            torch.zeros(places, rank, int(ends[-1]), dtype=dtype, device=device),
            ends,
        )


def add_low_rank(out: Tensor, x: Tensor, stack: LowRankStack, adapters: Tensor) -> None:
    """Add to each row of out [R, out] the product of its adapter with its row of x [R, in]; adapter 0 adds nothing.

    The shapes do not depend on which row has which adapter, so that a CUDA graph may hold it: every row is multiplied
    by every adapter, and products that are not its own are set to zero, which adds exactly nothing.
    """
    places, rank = len(stack.down), stack.rank
    own = adapters[None, :] == torch.arange(1, places + 1, device=adapters.device)[:, None]  # [S, R]
    inner = torch.matmul(x.to(stack.down.dtype)[None], stack.down) * own[:, :, None]  # [S, R, parts * rank]
    begin = 0
    for part, end in enumerate(stack.bounds.tolist()):
        mine = inner[:, :, part * rank : (part + 1) * rank].transpose(0, 1).reshape(len(x), places * rank)
        factor = stack.up[:, :, begin:end].reshape(places * rank, end - begin)
        out[:, begin:end] += (mine @ factor).to(out.dtype)
        begin = end
