"""Rules that decide which drafted tokens become output."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from augury.verify.sampling import Draws, Outcome, SlotSampling
from augury.verify.tree import Draft

if TYPE_CHECKING:
    from augury.kernels.verify import VerifyOps


def coupled(
    logits: Tensor, draws: Draws, sampling: SlotSampling, first: Tensor, draft: Draft, ops: VerifyOps
) -> Outcome:
    """The target draws its own token at every node, and the draft is followed for as long as it guessed them.

    Lossless, because every emitted token is the one that plain decoding emits: its noise is a function of the
    request's seed and its position alone, and its logits are those of its own prefix. The first emitted token continues
    the known history; each further one continues a path whose tokens equal those emitted before it, so its row saw
    just what plain decoding would have shown it. The draft decides only how many such tokens one pass yields.
    """
    return ops.walk(ops.draw(logits, draws, sampling), first, draft)
