"""How many replicas there should be: by the requests at work and waiting, and by how well drafts are accepted."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

LENGTH, WAITING = "tokens_per_step", "waiting"  # what a replica tells of itself


@dataclass(frozen=True, slots=True)
class Demand:
    """What the replicas of a deployment have to do."""

    replicas: int
    ongoing: float  # requests being answered or waiting, all together
    waiting: float  # of them, those that wait in an engine for a slot
    length: float  # tokens from a step of one request, on average: what acceptance buys


def wanted(demand: Demand, target: float, expected: float) -> int:
    """Replicas for a demand.

    `target` is the number of requests a replica should answer at a time while a step brings `expected` tokens. Where
    acceptance falls, answers take more steps and a request stays longer: the same arrivals need more replicas, and they
    are started before the queue has grown to say so. Where it rises, a replica can be spared; but never while requests
    wait for a slot.
    """
    scaled = demand.ongoing * expected / max(1.0, demand.length)
    count = math.ceil(scaled / target - 1e-9)
    if demand.waiting >= 1:
        count = max(count, demand.replicas, math.ceil(demand.ongoing / target - 1e-9))
    return max(count, 0)


def policy(ctx: Any) -> tuple[int, dict[str, Any]]:
    """Ray Serve's autoscaling policy; the usual length is learnt while it runs, as a slow average."""
    figures = ctx.aggregated_metrics or {}
    lengths = [value for value in figures.get(LENGTH, {}).values() if value >= 1]
    length = sum(lengths) / len(lengths) if lengths else 1.0
    waiting = float(sum(figures.get(WAITING, {}).values()))
    usual = ctx.policy_state.get("usual", length)
    demand = Demand(ctx.current_num_replicas, ctx.total_num_requests, waiting, length)
    count = wanted(demand, ctx.config.target_ongoing_requests, usual)
    low, high = ctx.capacity_adjusted_min_replicas, ctx.capacity_adjusted_max_replicas
    return min(max(count, low), high), {"usual": usual + (length - usual) / 100}
