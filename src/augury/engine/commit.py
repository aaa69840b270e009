"""What a pass adds to one request, and how it is counted."""

from __future__ import annotations

from typing import Any, NamedTuple

from augury.engine.request import Request
from augury.engine.runner import Flight
from augury.engine.scheduler import ScheduledRequest
from augury.kernels.verify import tree_depths
from augury.observe.stats import EngineStats
from augury.observe.steps import Step


class Update(NamedTuple):
    """What a step added to one request."""

    request: Request
    tokens: list[int]
    accepted: int  # how many of them were drafts
    trace: dict[str, Any] | None = None  # the step laid open, if the request asked
    error: Exception | None = None  # why the step had to go on without this request, which has ended


def count(item: ScheduledRequest, tokens: list[int], accepted: int, stats: EngineStats, last: Step) -> Update:
    """Enter what a request has kept of a pass into the engine's figures, the step's and its own."""
    stats.generation_tokens += len(tokens)
    last.generation_tokens += len(tokens)
    depth = min(item.nodes, item.request.draft_depth)
    if item.nodes:
        for spec in (stats.spec, item.request.spec):
            spec.observe(item.nodes, accepted, depth)
        last.drafts.append((item.nodes, accepted, depth))
        item.request.spec_steps.append((item.nodes, accepted))
    return Update(item.request, tokens, accepted)


def drafted(flight: Flight, report: list[list[int]], branching: bool) -> tuple[list[int], list[int]]:
    """Nodes and depth of every new draft; those drafted in the pass come with its report."""
    drafts = flight.drafts
    if drafts is None:
        return [0] * len(report), [0] * len(report)
    if flight.output.draft is not None:
        return [line[-2] for line in report], [line[-1] for line in report]
    nodes = drafts.count.tolist()
    return nodes, tree_depths(drafts).tolist() if branching else nodes
