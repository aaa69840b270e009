"""Where requests resume whose last draw the host has not seen, in one kernel; the reference is engine/resume.py."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

FIELDS = 8  # of a table of segments
WIDTH = 128  # groups a program


def resume(table: Tensor, length: Tensor, alive: Tensor, drafted: Tensor) -> Tensor:
    """The table int64 [8, G], filled in for groups whose start is below 0."""
    groups, out = table.shape[1], torch.empty_like(table)
    _resume[(triton.cdiv(groups, WIDTH),)](
        table, length, alive, drafted, out, table.stride(0), out.stride(0), groups, FIELDS=FIELDS, WIDTH=WIDTH
    )
    return out


@triton.jit(do_not_specialize=["field", "out_field", "groups"])
def _resume(table, length, alive, drafted, out, field, out_field, groups, FIELDS: tl.constexpr, WIDTH: tl.constexpr):
    g = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    there = g < groups
    slot = tl.load(table + g, mask=there, other=0)
    start = tl.load(table + field + g, mask=there, other=0)
    most = tl.load(table + 3 * field + g, mask=there, other=0)
    reserved = tl.load(table + 6 * field + g, mask=there, other=0)
    known = tl.load(length + slot, mask=there, other=0)
    runs = ((tl.load(alive + slot, mask=there, other=0) != 0) & (known <= reserved)).to(tl.int64)
    nodes = tl.minimum(tl.minimum(tl.load(drafted + slot, mask=there, other=0), most), reserved - known)
    goes_on = start < 0
    for field_number in tl.static_range(FIELDS):
        value = tl.load(table + field_number * field + g, mask=there, other=0)
        if field_number == 1:
            value = tl.where(goes_on, known - runs, value)
        elif field_number == 3:
            value = tl.where(goes_on, tl.where(runs != 0, nodes, 0), value)
        elif (field_number == 2) | (field_number == 4) | (field_number == 5):
            value = tl.where(goes_on, runs, value)
        tl.store(out + field_number * out_field + g, value, mask=there)
