"""The target's features for a drafter's rows, gathered in one kernel; the meaning is drafters/recurrent.py's."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024


def gather_streams(
    features: tuple[Tensor, ...], places: Tensor, row_begin: Tensor, start: Tensor, known: Tensor, path: Tensor,
    count: Tensor, carried: Tensor, slots: Tensor, block_tables: Tensor, block_size: int, block_ends: Tensor,
    mask_hidden: Tensor | None,
) -> Tensor:  # fmt: skip
    """Streams side by side, [R, streams * hidden], for rows with `places` int64 [3, R] (see draft_rows_triton).

    A row takes the features of its place on the track of its group; the row before the pass takes those kept in
    `block_ends`, a mask takes `mask_hidden`. The features of every block's last token are kept in `block_ends`.
    """
    rows, hidden = places.shape[1], features[0].shape[1]
    width = len(features) * hidden
    out = torch.empty(rows, width, dtype=features[0].dtype, device=places.device)
    for i, stream in enumerate(features):
        _gather[(rows, triton.cdiv(hidden, BLOCK))](
            stream, out, places, row_begin, start, known, path, count, carried, slots, block_tables, block_ends,
            out if mask_hidden is None else mask_hidden, rows, hidden, stream.stride(0), width, i * hidden,
            path.shape[1], block_tables.stride(0), block_tables.shape[1],
            BLOCK_SIZE=block_size, MASKED=mask_hidden is not None, BLOCK=BLOCK,
        )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["rows", "offset", "nodes", "table_stride", "table_width"])
def _gather(
    stream, out, places, row_begin, start, known, path, count, carried, slots, block_tables, block_ends, mask_hidden,
    rows, hidden, stride, width, offset, nodes, table_stride, table_width,
    BLOCK_SIZE: tl.constexpr, MASKED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    r, column = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < hidden
    g, number, live = tl.load(places + r), tl.load(places + rows + r), tl.load(places + 2 * rows + r)
    place = number - tl.load(carried + g)  # on the track; -1 is the token before this pass
    real = (live != 0) & (number < tl.load(count + g))
    mine = tl.load(known + g)
    behind = place - mine
    node = tl.load(path + g * nodes + behind, mask=(behind >= 0) & (behind < nodes), other=-1)
    row = tl.load(row_begin + g) + tl.where(place < mine, place, mine + node)
    row = tl.where((place >= 0) & ((place < mine) | (node >= 0)), row, 0)
    value = tl.load(stream + row * stride + column, mask=inside, other=0.0)
    position = tl.load(start + g) + place
    slot = tl.load(slots + g)
    number_in_table = tl.minimum(tl.maximum(position, 0) // BLOCK_SIZE, table_width - 1)
    block = tl.load(block_tables + slot * table_stride + number_in_table)
    kept = block_ends + block * width + offset + column
    if real & (place >= 0) & ((position + 1) % BLOCK_SIZE == 0):
        tl.store(kept, value, mask=inside)
    if real & (place < 0):
        value = tl.load(kept, mask=inside, other=0.0)
    if MASKED:
        if (live != 0) & (real == 0):
            value = tl.load(mask_hidden + offset + column, mask=inside, other=0.0)
    tl.store(out + r * width + offset + column, value, mask=inside)
