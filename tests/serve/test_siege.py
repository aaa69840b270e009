"""The siege in small: every attack, some hundred mutated requests, canaries."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from siege import ADDED, GROWTH, Watch, faults, siege
from siege_attacks import ATTACKS
from siege_fuzz import MUTATIONS, mutated, valid

HELD = [attack.name for attack in ATTACKS]
REQUESTS = 300


@pytest.mark.slow
def test_a_small_siege(toy_model: Path) -> None:
    """Time is not asserted: a machine that is shared makes everyone wait. The release checklist looks at it."""
    report = siege(toy_model, REQUESTS, 5, HELD)
    assert report["engine_restarts"] == 0 and report["wrong_answers"] == 0, report
    assert report["server_alive"] and report["canary_answers"] > 20
    told = {one["name"]: one for one in report["attacks"]}
    fallen = {name: one["fell"] for name, one in told.items() if one["fell"] and "canaries waited" not in one["fell"]}
    assert set(told) == {*HELD, "mutated requests"} and not fallen
    assert sum(told["mutated requests"]["statuses"].values()) == REQUESTS
    assert report["memory_bytes"]["after"] - report["memory_bytes"]["before"] < GROWTH
    assert json.loads(json.dumps(report)) == report


def test_every_attack_has_a_name_of_its_own() -> None:
    assert len({attack.name for attack in ATTACKS}) == len(ATTACKS)
    assert {attack.item for attack in ATTACKS} == {1, 2, 3, 4, 5, 6, 7, 9}  # 8 is about files and other servers


def test_the_fuzzer_says_the_same_for_the_same_seed() -> None:
    one, two = ([mutated(random.Random(f"7 {i}")) for i in range(200)] for _ in range(2))
    assert one == two and len({body.raw for body in one}) > 150
    sound = [json.loads(json.dumps(valid(random.Random(i))[1])) for i in range(50)]
    assert all(isinstance(body, dict) and body for body in sound)


def _name(mutation: Any) -> str:
    return str(mutation.__name__)


@pytest.mark.parametrize("mutation", sorted(set(MUTATIONS), key=_name), ids=_name)
def test_every_mutation_changes_something(mutation: Any) -> None:
    changed = 0
    for seed in range(40):
        body = valid(random.Random(seed))[1]
        before = json.dumps(body)
        mutation(random.Random(seed), body)
        changed += json.dumps(body) != before
    assert changed > 20


def report(**other: Any) -> dict[str, Any]:
    sound: dict[str, Any] = {
        "server_alive": True, "engine_restarts": 0, "wrong_answers": 0, "canary_wait_p99": {"added": ADDED},
        "memory_bytes": {"before": 1 << 30, "after": (1 << 30) + GROWTH}, "attacks": [{"name": "x", "fell": ""}],
    }  # fmt: skip
    return {**sound, **other}


@pytest.mark.parametrize(
    ("other", "says"),
    [
        ({}, []), ({"server_alive": False}, ["the server has ended"]), ({"engine_restarts": 2}, ["2 engine restarts"]),
        ({"wrong_answers": 1}, ["1 wrong answers"]),
        ({"canary_wait_p99": {"added": 0.6}}, ["canaries wait 0.6 s longer"]),
        ({"memory_bytes": {"before": 0, "after": 1 << 30}}, ["memory has grown by 1024 MB"]),
        ({"attacks": [{"name": "x", "fell": "read"}, {"name": "y", "skipped": True}]}, ["x: read"]),
    ],
)  # fmt: skip
def test_what_counts_as_a_fall(other: dict[str, Any], says: list[str]) -> None:
    assert faults(report(**other)) == says


def test_waits_are_those_of_their_time() -> None:
    watch = Watch([(float(i), float(i)) for i in range(100)] + [(1000.0, 9999.0)])
    assert watch.p99(0, 99) == 98 and watch.p99(200, 300) == 0
    watch = Watch([(10.0, 1.0), (30.0, 18.0), (31.0, 1.0)])
    assert watch.longest(9, 10) == 1 and watch.longest(12, 20) == 8 and watch.longest(0, 40) == 18
    assert watch.longest(40, 50) == 0 and watch.longest(28, 31) == 2
