"""What a pass adds to one request, and how it is counted."""

from __future__ import annotations

import logging
from typing import Any, NamedTuple

from augury.engine.budget import Budget
from augury.engine.flight import Flight
from augury.engine.report import GroupReport
from augury.engine.request import Request
from augury.kernels.verify import tree_depths
from augury.observe.stats import PROBE, EngineStats, shared_out
from augury.observe.steps import Step

logger = logging.getLogger("augury")


class Update(NamedTuple):
    """What a step added to one request."""

    request: Request
    tokens: list[int]
    accepted: int  # how many of them were drafts
    trace: dict[str, Any] | None = None  # details of the step, if the request asked for them
    error: Exception | None = None  # what ended this request; the step went on without it


def count(request: Request, nodes: int, tokens: list[int], accepted: int, stats: EngineStats, last: Step) -> Update:
    """Count the tokens a request kept of a pass that ran `nodes` draft nodes, for the engine, the step and itself."""
    stats.generation_tokens += len(tokens)
    last.generation_tokens += len(tokens)
    tags = request.tags
    if PROBE in tags:
        last.probe_tokens += len(tokens)
    if nodes:
        depth = min(nodes, request.draft_depth)
        for spec in (stats.spec, request.spec):
            spec.observe(nodes, accepted, depth)
        last.drafts.append((nodes, accepted, depth))
        last.contexts.append(request.length)
        last.tagged += [(len(last.drafts) - 1, tag) for tag in tags]
        request.spec_steps.append((nodes, accepted))
        if request.lora is not None:
            before = stats.by_adapter.get(request.lora.name, (0, 0))
            stats.by_adapter[request.lora.name] = before[0] + nodes, before[1] + accepted
        if request.draft_parts:
            _count_parts(request, nodes, accepted, stats, last)
    return Update(request, tokens, accepted)


def learn(budget: Budget, step: Step) -> None:
    """Have the controller learn from a pass. Its tokens are out already, so an error must not make it run again."""
    try:
        budget.learn(step)
    except Exception:
        logger.exception(
            "the draft budget could not learn from a pass; generated text is not affected. Please report this."
        )


def _count_parts(request: Request, nodes: int, accepted: int, stats: EngineStats, last: Step) -> None:
    """Count a draft under the names of the drafters that made it."""
    for name, tried, taken in shared_out(request.draft_parts, nodes, accepted):
        last.parts.append((name, tried, taken))
        for figures in (stats.by_drafter, request.by_drafter):
            before = figures.get(name, (0, 0))
            figures[name] = before[0] + tried, before[1] + taken


def drafted(flight: Flight, report: list[GroupReport], branching: bool) -> tuple[list[int], list[int]]:
    """Nodes and depth of every new draft; if it was made within the pass, they come with the pass's report."""
    drafts = flight.drafts
    if drafts is None:
        return [0] * len(report), [0] * len(report)
    if flight.output.draft is not None:
        return [told.nodes for told in report], [told.depth for told in report]
    nodes = drafts.count.tolist()
    return nodes, tree_depths(drafts).tolist() if branching else nodes
