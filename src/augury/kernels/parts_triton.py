"""Sums that several programs share: each writes its part, and the one that arrives last adds them in their order."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_arrived: dict[torch.device, Tensor] = {}


def counters(device: torch.device, count: int) -> Tensor:
    """int32: programs that have arrived at each sum, back at zero after every kernel; graphs may point to them."""
    if device not in _arrived or len(_arrived[device]) < count:
        _arrived[device] = torch.zeros(max(count, 4096), dtype=torch.int32, device=device)
    return _arrived[device]


@triton.jit
def join_parts(mine, parts, at, there, size, arrived, index, PARTS: tl.constexpr):
    """Write this program's part of a sum to `parts`; returns whether it is the last to arrive, and the sum if it is."""
    tl.store(parts + index * size + at, mine, mask=there)
    tl.debug_barrier()  # every thread's part is out before this program counts as arrived
    last = tl.atomic_add(arrived, 1, sem="acq_rel") == PARTS - 1
    total = mine
    if last:
        tl.debug_barrier()
        tl.store(arrived, 0)
        total = tl.load(parts + at, mask=there, other=0.0)
        for i in range(1, PARTS):
            total += tl.load(parts + i * size + at, mask=there, other=0.0)
    return last, total
