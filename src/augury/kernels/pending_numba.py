"""Write drafts to their slots, where they wait to be verified, on a CPU: one call where torch takes a dozen."""

from __future__ import annotations

import numpy as np
from numba import njit
from torch import Tensor

from augury.kernels.arrays import lasting
from augury.kernels.numba_options import OPTIONS


def leave_pending(
    tokens: np.ndarray,
    parents: np.ndarray,
    counts: np.ndarray,
    slots: np.ndarray,
    vocab: int,
    pending: tuple[Tensor, ...],
) -> np.ndarray:
    """Write tokens and parents [G, K] and counts [G] to lines of `pending`, the same three by slot.

    A draft ends before its first token that is not in the vocabulary; returns the counts that were kept, int64 [G].
    """
    kept = np.empty(len(counts), np.int64)
    _write(tokens, parents, counts, slots, vocab, kept, *[lasting(part) for part in pending])
    return kept


@njit(**OPTIONS)
def _write(tokens, parents, counts, slots, vocab, kept, pending_tokens, pending_parents, pending_counts):
    for g in range(len(slots)):
        count, slot = min(counts[g], tokens.shape[1]), slots[g]
        for i in range(count):
            if tokens[g, i] < 0 or tokens[g, i] >= vocab:
                count = i
                break
        kept[g] = pending_counts[slot] = count
        for i in range(count):
            pending_tokens[slot, i], pending_parents[slot, i] = tokens[g, i], parents[g, i]
