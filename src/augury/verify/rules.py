"""Rules that decide which drafted tokens become output."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from augury.verify import lossy, rejection
from augury.verify.sampling import Draws, Outcome, SlotSampling
from augury.verify.tree import Draft
from augury.verify.verdict import Verdict


class VerifyOps(NamedTuple):
    """The two operations of verification, on one kind of device."""

    draw: Callable[[Tensor, Draws, SlotSampling], Tensor]
    walk: Callable[[Tensor, Tensor, Draft], Outcome]


def coupled(
    logits: Tensor, draws: Draws, sampling: SlotSampling, first: Tensor, draft: Draft, ops: VerifyOps
) -> Outcome:
    """The target draws its own token at every node, and the draft is followed for as long as it predicted them.

    Lossless, because every emitted token is the one that plain decoding emits: its noise is a function of the
    request's seed and its position alone, and its logits are those of its own prefix. The first emitted token continues
    the known history; each further one continues a path whose tokens equal those emitted before it, so its row attended
    to just what it would in plain decoding. The draft decides only how many such tokens one pass yields.
    """
    return ops.walk(ops.draw(logits, draws, sampling), first, draft)


class Rule(NamedTuple):
    """A rule's description."""

    lossless: bool
    help: str  # one sentence for tables and errors
    judge: Callable[..., Verdict] | None  # (p, draft, active, u, ...) -> Verdict; None: the target draws for itself


RULES: dict[str, Rule] = {
    "coupled": Rule(True, "Same seed, same text: the target draws its own tokens and drafts only predict them.", None),
    "standard": Rule(True, "Rejection sampling, node by node.", rejection.standard),
    "block": Rule(True, "Block verification: accepts at least as much as standard on chains.", rejection.block),
    "typical": Rule(False, "Lossy: accepts what the target finds likely given its own uncertainty.", lossy.typical),
    "entropy": Rule(False, "Lossy: standard with a lower threshold where the target is uncertain.", lossy.entropy),
    "ascend_block": Rule(False, "Lossy: vllm-ascend's block verify, for comparison.", lossy.ascend_block),
    "synthetic": Rule(False, "Lossy: accepts at given rates whatever the models say; for benchmarks.", lossy.synthetic),
}
