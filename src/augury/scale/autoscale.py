"""How many replicas a deployment needs, from its running and waiting requests and from how well drafts are accepted."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

LENGTH, WAITING = "tokens_per_step", "waiting"  # metrics that each replica reports


@dataclass(frozen=True, slots=True)
class Demand:
    """The load on a deployment's replicas."""

    replicas: int
    ongoing: float  # requests running or waiting, over all replicas
    waiting: float  # of these, the ones that wait in an engine for a slot
    length: float  # mean tokens that a step yields for a request; acceptance raises it


def wanted(demand: Demand, target: float, expected: float) -> int:
    """The number of replicas for a demand.

    `target` is the number of concurrent requests a replica should have while a step yields `expected` tokens. When
    acceptance falls, answers take more steps and requests run longer: the same arrival rate needs more replicas, and
    they are started before a growing queue shows it. When it rises, a replica can be spared, but never while requests
    wait for a slot.
    """
    scaled = demand.ongoing * expected / max(1.0, demand.length)
    count = math.ceil(scaled / target - 1e-9)
    if demand.waiting >= 1:
        count = max(count, demand.replicas, math.ceil(demand.ongoing / target - 1e-9))
    return max(count, 0)


def policy(ctx: Any) -> tuple[int, dict[str, Any]]:
    """Ray Serve's autoscaling policy; the expected length is learned at run time, as a slow moving average."""
    figures = ctx.aggregated_metrics or {}
    lengths = [value for value in figures.get(LENGTH, {}).values() if value >= 1]
    length = sum(lengths) / len(lengths) if lengths else 1.0
    waiting = float(sum(figures.get(WAITING, {}).values()))
    usual = ctx.policy_state.get("usual", length)
    demand = Demand(ctx.current_num_replicas, ctx.total_num_requests, waiting, length)
    count = wanted(demand, ctx.config.target_ongoing_requests, usual)
    low, high = ctx.capacity_adjusted_min_replicas, ctx.capacity_adjusted_max_replicas
    return min(max(count, low), high), {"usual": usual + (length - usual) / 100}
