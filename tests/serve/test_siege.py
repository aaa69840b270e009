"""The siege in small: every attack, some hundred mutated requests, canaries."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from siege import Choir, siege
from siege_attacks import ATTACKS
from siege_fuzz import MUTATIONS, mutated, valid
from siege_machine import Others, Ticks
from siege_report import ADDED, FLAT, GROWTH, Siege, Watch, added_late, faults, figures

HELD = [attack.name for attack in ATTACKS]
REQUESTS = 300


@pytest.mark.slow
def test_a_small_siege(toy_model: Path) -> None:
    """Time is not asserted: a machine that is shared makes everyone wait. The release checklist looks at it.

    So the canaries sing to be compared, not to be timed: three of them, a song in half a second.
    """
    report = siege(toy_model, REQUESTS, 5, HELD, choir=Choir(3, calm=1.0, rest=0.3))
    assert report["engine_restarts"] == 0 and report["wrong_answers"] == 0, report
    assert report["server_alive"] and report["canary_answers"] > 20
    told = {one["name"]: one for one in report["attacks"]}
    fallen = {name: one["fell"] for name, one in told.items() if one["fell"] and "canaries wait" not in one["fell"]}
    assert set(told) == {*HELD, "mutated requests"} and not fallen
    assert sum(told["mutated requests"]["statuses"].values()) == REQUESTS
    assert report["memory_bytes"]["after"] - report["memory_bytes"]["before"] < GROWTH
    parts = report["memory_by_process"]["rounds"][-1]
    assert parts["engine"] > parts["server"] > 1 << 20 and parts["grammars"] > 0
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
        "server_alive": True,
        "engine_restarts": 0,
        "wrong_answers": 0,
        "canary_wait_p99": {"added": ADDED},
        "memory_bytes": {"before": 1 << 30, "after": (1 << 30) + GROWTH},
        "attacks": [{"name": "x", "fell": ""}],
        "memory_added_late": FLAT,
    }
    return {**sound, **other}


@pytest.mark.parametrize(
    ("other", "says"),
    [
        ({}, []),
        ({"server_alive": False}, ["the server has ended"]),
        ({"engine_restarts": 2}, ["2 engine restarts"]),
        ({"wrong_answers": 1}, ["1 wrong answers"]),
        ({"canary_wait_p99": {"added": 0.6}}, ["canaries wait 0.6 s longer"]),
        ({"memory_bytes": {"before": 0, "after": 1 << 30}}, ["memory has grown by 1024 MB"]),
        ({"memory_added_late": FLAT + (1 << 20)}, ["memory is not flat: 33 MB more"]),
        ({"attacks": [{"name": "x", "fell": "read"}, {"name": "y", "skipped": True}]}, ["x: read"]),
    ],
)
def test_what_counts_as_a_fall(other: dict[str, Any], says: list[str]) -> None:
    assert faults(report(**other)) == says


def test_waits_are_those_of_their_time() -> None:
    watch = Watch([(float(i), 0.5) for i in range(100)] + [(1000.0, 9.0)])
    assert watch.p99(0, 99) == 0.5 and watch.p99(200, 300) == 0
    assert watch.p99(980, 995) == 9, "a stall is told of when it ends, which may be after the attack"
    watch = Watch([(10.0, 1.0), (30.0, 18.0), (31.0, 1.0)])
    assert watch.longest(9, 10)[0] == 1 and watch.longest(12, 20) == (8, 20) and watch.longest(0, 40) == (18, 30)
    assert watch.longest(40, 50)[0] == 0 and watch.longest(28, 31)[0] == 2


def test_an_attack_falls_by_the_wait_that_it_adds_to_calm() -> None:
    """One long wait among six hundred is shown and does not count; three of a hundred do."""
    calm = [(float(i), 0.2) for i in range(100)]
    single = [(100 + i / 40, 0.2) for i in range(600)] + [(125.0, 3.0)]
    often = [(200 + i / 10, 0.2) for i in range(97)] + [(215.0, 0.9)] * 3
    told = [
        {"name": name, "item": 4, "statuses": {}, "fell": "", "begun": begun, "ended": begun + 50}
        for name, begun in (("single", 100.0), ("often", 200.0))
    ]
    seen = Siege(Watch(calm + single + often), told=told, times=(0.0, 99.5, 250.0))
    report = figures(seen, True, 0)
    assert [one["longest_wait"] for one in report["attacks"]] == [3.0, 0.9]
    assert report["fell"] == ["often: canaries wait 0.7 s longer (p99)"]


def test_what_is_added_late_is_that_of_the_second_half_or_of_the_last_siege() -> None:
    def stages(*sums: int) -> list[dict[str, Any]]:
        return [{"requests": i, "memory": {"engine": one}} for i, one in enumerate(sums)]

    assert added_late(Siege(sent=stages(1, 1, 50, 98, 99, 500, 150, 101, 7, 103, 109, 400))) == 109 - 99
    assert added_late(Siege(sent=stages(1, 2))) == 0
    assert added_late(Siege(rounds=[{"a": 5}, {"a": 9, "b": 1}, {"a": 11, "b": 2}])) == 3


def test_what_others_take_is_known_for_a_stretch_of_time() -> None:
    others = Others([(0.0, Ticks(0, 0, 0, 0)), (10.0, Ticks(1000, 600, 50, 400)), (20.0, Ticks(2000, 600, 50, 400))])
    assert others.share(1, 9) == {"others": 0.2, "stolen": 0.05}
    assert others.share(12, 18) == {"others": 0.0, "stolen": 0.0} and others.share(15, 30) == {}
