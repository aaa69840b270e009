"""Segments of requests whose last draw the host has not seen: the device fills in where each continues, or has ended.

A pass launched while the one before it is in flight sends `CONTINUES` as a request's start, and as its nodes the most
that may be pending. The device fills in the rest: how long the text is now, how many nodes were drafted, and whether
the request has drawn its last token. A request that has ended runs no row and draws nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor

from augury.engine.scheduled import CONTINUES
from augury.engine.state import SlotState
from augury.kernels.faces import face


def resume(table: Tensor, state: SlotState) -> Tensor:
    """The table int64 [8, G] with every start, count of nodes and activity filled in; see Segments for its rows."""
    if face(table.device) == "triton":
        from augury.kernels.resume_triton import resume as in_one_kernel

        return in_one_kernel(table, state.length, state.alive, state.draft.count)
    slots, start, _, most, _, _, reserved, _ = table.unbind(0)
    length = state.length[slots]
    alive = state.alive[slots].bool() & (length <= reserved)
    nodes = torch.minimum(torch.minimum(state.draft.count[slots], most), reserved - length)
    runs = alive.to(table.dtype)
    nodes = torch.where(alive, nodes, 0)
    filled = torch.stack((slots, length - runs, runs, nodes, runs, runs, *table[6:]))
    return torch.where(start == CONTINUES, filled, table)
