"""Lines of a tiled matrix, read from its records: a pass looks up a token or two, a drafter one per draft token."""

from __future__ import annotations

import numpy as np
from numba import njit

from augury.kernels.arrays import Array
from augury.kernels.machine import LINES
from augury.kernels.tiles import GROUP, TILE
from augury.kernels.unpack import BLOCK

HALF = BLOCK // 2


@njit(cache=True, nogil=True)
def gather_lines(tiles: Array, floats: Array, wanted: Array, parts: int, out: Array) -> None:
    """The wanted lines as float32 [n, width]; `floats` are the tiles' bytes as floats, `parts` of them with each block.

    Codes times scales need no rounding (see model/packed.py), so there is one sum, rounded once, as in `unpacked`.
    """
    halved = parts == 2
    count = HALF if halved else BLOCK  # bytes of a line's codes in a block
    split = count * TILE // 4  # floats that the codes of a record take
    for n in range(len(wanted)):
        tile, half, line = wanted[n] // TILE, wanted[n] % TILE // LINES, wanted[n] % LINES
        for block in range(tiles.shape[1]):
            codes, first = tiles[tile, block], half * count // GROUP * LINES + line
            factors, place = floats[tile, block], split + half * parts * LINES + line
            low, shift = factors[place], factors[place + (parts - 1) * LINES]
            high = low if halved else factors[place + LINES]
            start = block * BLOCK
            for i in range(HALF):
                code = codes[(first + i // GROUP * LINES) * GROUP + i % GROUP]
                if halved:
                    out[n, start + i] = np.float32(code & 15) * low + shift
                    out[n, start + HALF + i] = np.float32(code >> 4) * low + shift
                else:
                    second = codes[(first + (HALF + i) // GROUP * LINES) * GROUP + i % GROUP]
                    out[n, start + i] = np.float32(code) * low + shift
                    out[n, start + HALF + i] = np.float32(second) * high + shift
