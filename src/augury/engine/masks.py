"""Grammars in a forward pass: forbidden draft nodes are removed before they cost a row, the others have masked logits.

If a pass begins before its masks are made, forbidden nodes stay in it and are masked, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from augury.engine.grammar import Ahead, advance
from augury.engine.grammar_match import allows
from augury.engine.report import GroupReport
from augury.engine.request import Request
from augury.engine.scheduled import ScheduledRequest
from augury.engine.state import SlotState
from augury.kernels.verify import unpacked
from augury.verify.sampling import Masks

if TYPE_CHECKING:
    from augury.engine.flight import Flight


class GroupMasks(NamedTuple):
    """The masks of a pass by group; only the device knows which lines of logits belong to which group."""

    bits: Tensor  # int32 [M, ceil(V / 32)], see Masks
    begin: Tensor  # int64 [G]: the first mask of each group
    counts: Tensor  # int64 [G]: how many it has, from its root down; 0: it has no grammar
    most: int  # the largest count

    def place(self, first: Tensor, logits_rows: int) -> Masks:
        """The masks by line of logits, where `first` [G] is the line of each group's root."""
        number = torch.arange(self.most, device=first.device)
        real = number < self.counts[:, None]
        rows = torch.full((logits_rows + 1,), -1, device=first.device)  # the last one takes the writes of padding
        lines = torch.where(real, first[:, None] + number, logits_rows)
        rows[lines] = torch.where(real, self.begin[:, None] + number, -1)
        return Masks(self.bits, rows[:logits_rows])


def gather(scheduled: list[ScheduledRequest], groups: int, device: torch.device) -> GroupMasks | None:
    """The masks of a pass of so many groups; None, and no cost, if no request that draws has a grammar."""
    if not any(item.active and item.request.grammar for item in scheduled):
        return None
    counts, parts = np.zeros(groups, dtype=np.int64), []
    for g, item in enumerate(scheduled):
        if item.active and item.request.grammar:
            counts[g] = 1 + item.nodes
            parts.append(item.request.grammar.masks[: counts[g]])
    bits, begin = np.concatenate(parts), np.cumsum(counts) - counts
    if bits.ndim != 2:  # a single mask needs no stacking, whose kernel would be compiled for nothing
        raise ValueError(f"masks have {bits.ndim} dimensions instead of 2")
    sent = [torch.from_numpy(part).to(device) for part in (bits, begin, counts)]
    return GroupMasks(sent[0], sent[1], sent[2], int(counts.max()))


def read_ahead(
    flight: Flight, report: list[GroupReport], nodes: list[int], predicted: dict[int, list[int]], state: SlotState
) -> dict[int, Ahead]:
    """Send the tokens that a pass emitted and the next drafts to its grammars; returns what was asked, by group.

    All are asked before one is waited for. A request that does not keep one of these tokens has ended, so it does no
    harm that the grammar has consumed it.
    """
    scheduled = flight.scheduled
    bound = [
        g
        for g, item in enumerate(scheduled)
        if item.request.grammar is not None and report[g].emitted and item.epoch == item.request.epoch
    ]
    if not bound:
        return {}
    tokens, parents = _nodes_of(flight, report, state)
    asked = {}
    for g in bound:
        grammar, emitted = scheduled[g].request.grammar, report[g].emitted
        assert grammar is not None
        drafted = (tokens[g][: nodes[g]], parents[g][: nodes[g]]) if tokens else ([], [])
        if g in predicted:  # its client's prediction has replaced the drafter's draft
            drafted = predicted[g], list(range(-1, nodes[g] - 1))
        asked[g] = Ahead(grammar, emitted, *drafted)
    advance(asked.values())
    return asked


def _nodes_of(
    flight: Flight, report: list[GroupReport], state: SlotState
) -> tuple[Sequence[Sequence[int]], Sequence[Sequence[int]]]:
    """Tokens and parents of every group's next draft; none if no request drafts.

    If the next pass may be in flight they are read from the report, as a copy would have to wait for that pass.
    """
    draft = flight.drafts
    if draft is None:
        return [], []
    if flight.output.draft is None or state.masks is None:
        return draft.tokens.tolist(), draft.parents.tolist()
    return [told.tokens for told in report], [told.parents for told in report]


def keep_to_grammar(request: Request, asked: Ahead, state: SlotState) -> bool:
    """Make sure that no node of a request's pending draft is accepted that its grammar forbids.

    A grammar with an error ends the request. Returns False if the next pass has begun and must be dropped.
    """
    kept = asked.grammar.look_ahead(asked.tokens or [], asked.parents)
    if asked.grammar.error is not None:
        request.end_by_grammar()
    elif not request.in_flight:
        _prune(request, asked, kept, state)
    elif not _mask(request, asked, kept, state):
        request.waits = True
        return False
    return True


def _mask(request: Request, asked: Ahead, kept: list[int], state: SlotState) -> bool:
    """Write the masks of a pass that has begun; forbidden nodes stay in the draft, and are never accepted.

    A token that is forbidden cannot be drawn, so no line after it is ever reached. Returns False if that is not
    certain: some node was not checked in time, so its continuations are unknown.
    """
    grammar, tokens = asked.grammar, asked.tokens or []
    assert state.masks is not None
    line = {-1: 0} | {node: i for i, node in enumerate(kept, 1)}
    for node, (token, parent) in enumerate(zip(tokens, asked.parents, strict=True)):
        unread = node not in line and parent in line and token not in request.stop_ids
        if unread and allows(grammar.masks[line[parent]], token):
            return False
    masks = np.full((1 + len(tokens), grammar.masks.shape[1]), -1, dtype=np.int32)
    masks[[1 + node for node in line]] = grammar.masks[: len(line)]
    grammar.masks = masks
    state.masks.put(request.slot, masks)
    return True


def _prune(request: Request, asked: Ahead, kept: list[int], state: SlotState) -> None:
    """Remove forbidden nodes from a request's pending draft, before they cost rows."""
    grammar, tokens, parents = asked.grammar, asked.tokens or [], asked.parents
    place = {-1: -1} | {node: i for i, node in enumerate(kept)}
    hung = [place[parents[node]] for node in kept]
    request.draft_nodes, request.draft_depth = len(kept), _depth(hung)
    if kept:
        bits = grammar.masks[[parent + 1 for parent in hung]] if state.draft.probs is not None else None
        rewrite(state, request.slot, kept, [tokens[node] for node in kept], hung, bits)
    if state.masks is not None:
        state.masks.put(request.slot, grammar.masks)


def _depth(parents: Sequence[int]) -> int:
    depths: list[int] = []
    for parent in parents:
        depths.append(depths[parent] + 1 if parent >= 0 else 1)
    return max(depths, default=0)


def rewrite(
    state: SlotState, slot: int, kept: list[int], tokens: list[int], parents: list[int], bits: np.ndarray | None
) -> None:
    """Keep only these nodes in the slot, packed; `bits` are the grammar's masks that they were checked by, one each."""
    pending, count = state.draft, len(kept)
    if kept[-1] >= count:
        pending.tokens[slot, :count] = torch.tensor(tokens, device=pending.tokens.device)
        pending.parents[slot, :count] = torch.tensor(parents, device=pending.tokens.device)
    if pending.probs is not None and bits is not None:
        # A sampled draft that survives was drawn from the drafter's probabilities given that the grammar allows it.
        # Rules that reject and draw again are lossless against those only.
        there = torch.from_numpy(bits).to(pending.probs.device)
        probs = torch.where(unpacked(there, pending.probs.shape[2]), pending.probs[slot, kept], 0.0)
        pending.probs[slot, :count] = probs / probs.sum(1, keepdim=True).clamp(min=torch.finfo(probs.dtype).tiny)
    if state.leader is not None:
        state.note("rewrite", slot, kept, tokens, parents, None if bits is None else bits.tolist())
