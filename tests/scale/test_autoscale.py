"""How many replicas are wanted: by queue and by acceptance."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from augury.scale.autoscale import LENGTH, WAITING, Demand, policy, wanted


@pytest.mark.parametrize(
    ("demand", "count"),
    [
        (Demand(2, 64, 0, 3.0), 2),  # the usual acceptance: requests over target
        (Demand(2, 65, 0, 3.0), 3),
        (Demand(2, 64, 0, 1.5), 4),  # half the tokens a step: twice as many replicas for the same arrivals
        (Demand(4, 64, 0, 6.0), 1),  # twice the tokens: half as many
        (Demand(4, 64, 5, 6.0), 4),  # but none is spared while requests wait
        (Demand(2, 128, 5, 6.0), 4),  # and waiting requests are not scaled away
        (Demand(3, 0, 0, 3.0), 0),
    ],
)
def test_replicas_for_a_demand(demand: Demand, count: int) -> None:
    assert wanted(demand, target=32, expected=3.0) == count


def context(requests: float, length: float, state: dict[str, Any], replicas: int = 2, waiting: float = 0) -> Any:
    return SimpleNamespace(
        aggregated_metrics={LENGTH: {"a": length, "b": length}, WAITING: {"a": waiting}},
        policy_state=state,
        current_num_replicas=replicas,
        total_num_requests=requests,
        config=SimpleNamespace(target_ongoing_requests=32.0),
        capacity_adjusted_min_replicas=1,
        capacity_adjusted_max_replicas=8,
    )


def test_the_policy_learns_what_is_usual_and_keeps_its_bounds() -> None:
    count, state = policy(context(64, 3.0, {}))
    assert (count, state) == (2, {"usual": 3.0})
    count, state = policy(context(64, 1.5, state))
    assert count == 4 and 2.9 < state["usual"] < 3.0
    assert policy(context(6400, 3.0, {}))[0] == 8 and policy(context(0, 3.0, {}))[0] == 1


def test_a_deployment_that_has_told_nothing_yet_is_scaled_by_requests() -> None:
    bare = context(96, 0.0, {})
    bare.aggregated_metrics = None
    assert policy(bare)[0] == 3
