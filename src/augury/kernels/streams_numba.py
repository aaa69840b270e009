"""The target's features for a drafter's rows, gathered in one loop on the host; see streams_triton.gather_streams."""

from __future__ import annotations

import numpy as np
from numba import njit
from torch import Tensor

from augury.kernels.arrays import Array, array_of, fresh, lasting
from augury.kernels.layout_numba import physical
from augury.kernels.room_numba import put

NO_MASK = np.empty(0, np.float32)


def gather_streams(
    features: tuple[Tensor, ...],
    places: Tensor,
    row_begin: Tensor,
    start: Tensor,
    known: Tensor,
    path: Tensor,
    count: Tensor,
    carried: Tensor,
    slots: Tensor,
    block_tables: Tensor,
    block_size: int,
    block_ends: Tensor,
    mask_hidden: Tensor | None,
) -> Tensor:
    """Streams side by side, float32 [R, streams * hidden], for rows with `places` int64 [3, R]."""
    out, array = fresh(places.shape[1], len(features) * features[0].shape[1])
    gather(
        tuple(map(array_of, features)),
        array_of(places),
        array_of(row_begin),
        array_of(start),
        array_of(known),
        array_of(path),
        array_of(count),
        array_of(carried),
        array_of(slots),
        lasting(block_tables),
        block_size,
        lasting(block_ends),
        NO_MASK if mask_hidden is None else lasting(mask_hidden).reshape(-1),
        array,
    )
    return out


@njit(cache=True, nogil=True)
def gather(
    streams: tuple[Array, ...],
    places: Array,
    row_begin: Array,
    start: Array,
    known: Array,
    path: Array,
    count: Array,
    carried: Array,
    slots: Array,
    block_tables: Array,
    block_size: int,
    block_ends: Array,
    mask: Array,
    out: Array,
) -> None:
    """Fill in the features of one row after another; see streams_triton.gather_streams."""
    hidden = streams[0].shape[1]
    for r in range(out.shape[0]):
        g, number, live = places[0, r], places[1, r], places[2, r] != 0
        place = number - carried[g]  # on the track; -1 is the token before this pass
        position, real = start[g] + place, live and number < count[g]
        block = physical(block_tables, slots[g], max(0, position), block_size) // block_size
        line, kept = out[r], block_ends[block]
        if real and place < 0:
            put(line, kept)
        elif len(mask) and live and not real:
            put(line, mask)
        else:
            row = track_row(place, row_begin[g], known[g], path[g])
            for i in range(len(streams)):
                put(line[i * hidden : (i + 1) * hidden], streams[i][row])
            if real and (position + 1) % block_size == 0:
                put(kept, line)


@njit(cache=True, nogil=True)
def track_row(place: int, begin: int, known: int, path: Array) -> int:
    """The pass's row of a place on a group's track; see drafters/features.py."""
    if place < 0:
        return 0
    if place < known:
        return begin + place
    node = path[place - known] if place - known < len(path) else -1
    return begin + known + node if node >= 0 else 0
