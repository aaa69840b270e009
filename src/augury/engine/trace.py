"""The trace of one request's step, for requests that ask for it: what was drafted, what became of it, and how likely
the target found it."""

from __future__ import annotations

import math
import time
from typing import Any

import torch

from augury.engine.advance import StepOutput
from augury.engine.scheduled import ScheduledRequest
from augury.observe.steps import Step


def trace_step(
    item: ScheduledRequest, group: int, output: StepOutput, tokens: list[int], accepted: int, step: Step
) -> dict[str, Any]:
    """The step as JSON: tokens with where each came from, the draft tree with its probabilities, and the time."""
    parents = output.layout.draft.parents[group, : item.nodes].tolist()
    path = output.outcome.path[group].tolist()
    taken = [node for node in path if node >= 0]
    at_a_leaf = not any(parent == (taken[-1] if taken else -1) for parent in parents)
    last = {"from": "correction"} if not at_a_leaf else {"from": "plain", "bonus": True} if taken else {"from": "plain"}
    origins = [{"from": "draft"} if i < accepted else last for i in range(len(tokens))]
    traced: dict[str, Any] = {
        "tokens": [{"id": token, **origin} for token, origin in zip(tokens, origins, strict=True)],
        "ms": round(1000 * (time.perf_counter() - step.begun), 3),
        "batch": step.requests,
    }
    if item.nodes:
        ids = output.layout.draft.tokens[group, : item.nodes].tolist()
        probs = _probabilities(output, int(output.layout.first[group]), ids, parents)
        traced["draft"] = {"ids": ids, "parents": parents, "accepted": taken, "probs": probs}
    return traced


def _probabilities(output: StepOutput, first: int, ids: list[int], parents: list[int]) -> list[float | None]:
    """The target's probability of each node after its own path: raw logits at temperature 1, as logprobs are.

    None if it is not finite, because JSON has no such numbers.
    """
    device = output.scores.logits.device
    lines = torch.tensor([first + 1 + parent for parent in parents], device=device)
    probs = torch.softmax(output.scores.logits[lines].float(), dim=-1)
    chosen = probs.gather(1, torch.tensor(ids, device=device)[:, None])[:, 0]
    return [round(p, 6) if math.isfinite(p) else None for p in chosen.tolist()]
