"""Grammars in a pass: drafts they forbid are taken away before they cost a row, the others are masked node by node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from augury.engine.grammar import Ahead, advance
from augury.engine.request import Request
from augury.engine.scheduled import ScheduledRequest
from augury.engine.state import SlotState
from augury.kernels.verify import unpacked
from augury.verify.sampling import Masks
from augury.verify.tree import Draft


class GroupMasks(NamedTuple):
    """The masks of a pass by group; only the device knows which lines are whose."""

    bits: Tensor  # int32 [M, ceil(V / 32)], see Masks
    begin: Tensor  # int64 [G]: the first mask of each group
    counts: Tensor  # int64 [G]: how many it has, from its root down; 0: it is free
    most: int  # of any group

    def place(self, first: Tensor, logits_rows: int) -> Masks:
        """By line, where `first` [G] is the line of each group's root."""
        number = torch.arange(self.most, device=first.device)
        real = number < self.counts[:, None]
        rows = torch.full((logits_rows + 1,), -1, device=first.device)  # the last line takes what means nothing
        lines = torch.where(real, first[:, None] + number, logits_rows)
        rows[lines] = torch.where(real, self.begin[:, None] + number, -1)
        return Masks(self.bits, rows[:logits_rows])


def gather(scheduled: list[ScheduledRequest], groups: int, device: torch.device) -> GroupMasks | None:
    """The masks of a pass of so many groups; None, and no cost, where nobody who draws has a grammar."""
    if not any(item.active and item.request.grammar for item in scheduled):
        return None
    counts, parts = np.zeros(groups, dtype=np.int64), []
    for g, item in enumerate(scheduled):
        if item.active and item.request.grammar:
            counts[g] = 1 + item.nodes
            parts.append(item.request.grammar.masks[: counts[g]])
    bits, begin = np.concatenate(parts), np.cumsum(counts) - counts
    if bits.ndim != 2:  # one alone can be put together with nobody's; a kernel would be compiled for it, in vain
        raise ValueError(f"masks have {bits.ndim} dimensions instead of 2")
    sent = [torch.from_numpy(part).to(device) for part in (bits, begin, counts)]
    return GroupMasks(sent[0], sent[1], sent[2], int(counts.max()))


def read_ahead(
    scheduled: list[ScheduledRequest],
    report: list[list[int]],
    draft: Draft | None,
    nodes: list[int],
    predicted: dict[int, list[int]],
) -> dict[int, Ahead]:
    """Tell the grammars of a pass what it emitted and what is drafted next; what was asked, by the request's place.

    All are asked before one is waited for. A token that its request does not keep after all ends that request, so it
    does no harm that the grammar has read it.
    """
    bound = [g for g, item in enumerate(scheduled) if item.request.grammar is not None and report[g][1]]
    if not bound:
        return {}
    tokens = draft.tokens.tolist() if draft is not None else []
    parents = draft.parents.tolist() if draft is not None else []
    asked = {}
    for g in bound:
        grammar, (_, count, *emitted) = scheduled[g].request.grammar, report[g]
        assert grammar is not None
        drafted = (tokens[g][: nodes[g]], parents[g][: nodes[g]]) if draft is not None else ([], [])
        if g in predicted:  # what a client expects has taken the drafter's place
            drafted = predicted[g], list(range(-1, nodes[g] - 1))
        asked[g] = Ahead(grammar, emitted[:count], *drafted)
    advance(asked.values())
    return asked


def prune(request: Request, asked: Ahead, state: SlotState) -> None:
    """Take from a request's pending draft what its grammar forbids; a grammar that gave up ends the request."""
    grammar, tokens, parents = asked.grammar, asked.tokens or [], asked.parents
    kept = grammar.look_ahead(tokens, parents)
    if grammar.error is not None:
        request.end_by_grammar()
        return
    place = {-1: -1} | {node: i for i, node in enumerate(kept)}
    hung = [place[parents[node]] for node in kept]
    request.draft_nodes, request.draft_depth = len(kept), _depth(hung)
    if kept:
        bits = grammar.masks[[parent + 1 for parent in hung]] if state.draft.probs is not None else None
        rewrite(state, request.slot, kept, [tokens[node] for node in kept], hung, bits)


def _depth(parents: Sequence[int]) -> int:
    depths: list[int] = []
    for parent in parents:
        depths.append(depths[parent] + 1 if parent >= 0 else 1)
    return max(depths, default=0)


def rewrite(
    state: SlotState, slot: int, kept: list[int], tokens: list[int], parents: list[int], bits: np.ndarray | None
) -> None:
    """Leave only the kept nodes in the slot, close together; `bits` are their grammar's masks, a line a node."""
    pending, count = state.draft, len(kept)
    if kept[-1] >= count:
        pending.tokens[slot, :count] = torch.tensor(tokens, device=pending.tokens.device)
        pending.parents[slot, :count] = torch.tensor(parents, device=pending.tokens.device)
    if pending.probs is not None and bits is not None:
        # A sampled draft that survives was drawn from the drafter's probabilities given that the grammar allows it.
        # Rules that reject and draw anew are lossless against those only.
        there = torch.from_numpy(bits).to(pending.probs.device)
        probs = torch.where(unpacked(there, pending.probs.shape[2]), pending.probs[slot, kept], 0.0)
        pending.probs[slot, :count] = probs / probs.sum(1, keepdim=True).clamp(min=torch.finfo(probs.dtype).tiny)
    if state.leader is not None:
        state.note("rewrite", slot, kept, tokens, parents, None if bits is None else bits.tolist())
