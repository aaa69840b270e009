"""Drafts from the output that a client predicts: between passes they replace the drafter's if they promise more."""

from __future__ import annotations

import torch

from augury.config.speculative import SpeculativeConfig
from augury.drafters.base import Drafter
from augury.engine.flight import Flight
from augury.engine.report import GroupReport
from augury.engine.request import Request
from augury.engine.scheduled import ScheduledRequest
from augury.engine.state import SlotState
from augury.index.prediction import LONGEST
from augury.observe.stats import Parts

PREDICTED = "prediction"  # the name of these drafts among the drafters'


def room(spec: SpeculativeConfig | None, device: torch.device) -> int:
    """Nodes a pending draft may have, so that predicted tokens fit.

    Captured passes grow with the widest draft, and other rules than `coupled` have tables of the method's width: there
    a prediction is limited to the method's own number.
    """
    if spec is None:
        return LONGEST
    widened = spec.rule == "coupled" and device.type == "cpu"
    return max(spec.max_nodes, LONGEST) if widened else spec.max_nodes


def predict(
    flight: Flight,
    report: list[GroupReport],
    nodes: list[int],
    depths: list[int],
    state: SlotState,
    drafter: Drafter | None,
) -> dict[int, list[int]]:
    """Replace pending drafts by predicted tokens; returns these by group, and updates `nodes` and `depths`.

    Requests without a prediction pay nothing for this.
    """
    found = {}
    for g, item in enumerate(flight.scheduled):
        if item.request.prediction is None or item.epoch != item.request.epoch or not report[g].emitted:
            continue
        guesses = _read(item, report[g], state.draft.tokens.shape[1])
        if guesses and item.request.prediction.outweighs(nodes[g]):
            if drafter is not None:
                length = item.request.length + len(report[g].emitted)
                drafter.discard(item.request.slot, length)
                state.note("discard", item.request.slot, length)
            leave(guesses, item.request.slot, state)
            found[g], nodes[g], depths[g] = guesses, len(guesses), len(guesses)
    return found


def _read(item: ScheduledRequest, told: GroupReport, width: int) -> list[int]:
    """Advance a request's prediction by what a pass has added; returns the tokens that it predicts next."""
    request = item.request
    assert request.prediction is not None
    if _guessed(request) and item.nodes:
        request.prediction.judged(item.nodes, told.accepted)
    request.prediction.follow(told.emitted)
    left = request.max_len - request.length - len(told.emitted) - 1  # the last token of a request needs no draft
    return request.prediction.guesses(max(0, request.spec_options.at_most(min(width, left))))


def _guessed(request: Request) -> bool:
    return any(name == PREDICTED for name, _ in request.draft_parts)


def leave(guesses: list[int], slot: int, state: SlotState) -> None:
    """Write a chain to a slot's pending draft; if the rule needs probabilities, each token has probability 1."""
    pending, count = state.draft, len(guesses)
    tokens = torch.tensor(guesses, device=pending.tokens.device)
    pending.tokens[slot, :count] = tokens
    pending.parents[slot, :count] = torch.arange(-1, count - 1, device=tokens.device)
    pending.count[slot] = count
    state.note("expect", guesses, slot)
    if pending.probs is not None:
        pending.probs[slot, :count] = 0.0
        pending.probs[slot, torch.arange(count, device=tokens.device), tokens] = 1.0


def draft_parts(drafter: Drafter | None, slot: int, nodes: int, predicted: bool) -> Parts:
    """Which drafters made the draft that is pending in a slot; empty if there is only one."""
    if predicted:
        return ((PREDICTED, nodes),)
    return drafter.parts(slot) if nodes and drafter is not None else ()
