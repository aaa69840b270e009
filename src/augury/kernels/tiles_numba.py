"""Lines of a tiled matrix, picked out of its records: a step looks up a token or two, thousands of times."""

from __future__ import annotations

from numba import njit

from augury.kernels.arrays import Array
from augury.kernels.machine import LINES
from augury.kernels.tiles import GROUP, TILE


@njit(cache=True, nogil=True)
def gather_lines(tiles: Array, floats: Array, wanted: Array, split: int, codes: Array, factors: Array) -> None:
    """Codes [n, blocks, bytes] and factors [n, blocks, floats] of some lines; `floats` are the tiles' bytes as such."""
    for n in range(len(wanted)):
        tile, half, line = wanted[n] // TILE, wanted[n] % TILE // LINES, wanted[n] % LINES
        for block in range(tiles.shape[1]):
            for code in range(codes.shape[2]):
                place = (half * codes.shape[2] // GROUP + code // GROUP) * LINES + line
                codes[n, block, code] = tiles[tile, block, place * GROUP + code % GROUP]
            for factor in range(factors.shape[2]):
                place = (half * factors.shape[2] + factor) * LINES + line
                factors[n, block, factor] = floats[tile, block, split // 4 + place]
