"""`augury tune`: intervals, and the race against scripted clocks."""

from __future__ import annotations

import math
import random

import pytest
from tuning import scripted

from augury.tools.tune.families import PLAIN_ARM, Arm
from augury.tools.tune.intervals import ratio, student
from augury.tools.tune.race import LEAST_GROUPS, GroupRun, Race, RaceTurn, size

# --- intervals -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("share", "freedom", "value"),  # from any printed table
    [
        (0.975, 1, 12.706),
        (0.975, 2, 4.303),
        (0.975, 5, 2.571),
        (0.975, 30, 2.042),
        (0.995, 4, 4.604),
        (0.9995, 3, 12.924),
        (0.95, 10, 1.812),
        (0.5, 7, 0.0),
    ],
)
def test_students_quantiles(share: float, freedom: int, value: float) -> None:
    assert student(share, freedom) == pytest.approx(value, abs=2e-3, rel=5e-4)


def test_an_interval_holds_the_truth_as_often_as_it_says() -> None:
    dice, inside, trials = random.Random(1), 0, 1500
    for _ in range(trials):
        plain = [dice.uniform(1, 3) for _ in range(8)]
        faster = [p / 1.5 * dice.gauss(1, 0.1) for p in plain]
        found = ratio(plain, faster, 0.9)
        inside += found.low <= 1.5 <= found.high
    assert 0.86 < inside / trials < 0.94


def test_one_pair_says_nothing() -> None:
    found = ratio([2.0], [1.0], 0.95)
    assert found.value == 2.0 and found.low == 0.0 and math.isinf(found.high)


# --- the race ------------------------------------------------------------------------------------------------------


def arms_of(name: str, *ks: int) -> list[Arm]:
    return [Arm(name, k) for k in ks]


def test_the_fastest_wins_and_the_race_ends_when_it_is_clear() -> None:
    arms = arms_of("a", 1, 2, 4, 8)
    speeds = {arms[0]: 1.1, arms[1]: 1.3, arms[2]: 1.6, arms[3]: 0.8}
    race, turns = Race(arms, 12), []
    answer = scripted(speeds)
    race.run(lambda turn: (turns.append(turn), answer(turn))[1])  # type: ignore[func-returns-value]
    assert race.leader == arms[2] and race.sure
    assert len(turns) < size(len(arms))  # all others were surely slower before the last rung
    found = race.speed_up(arms[2])
    assert found.low < 1.6 < found.high and found.high - found.low < 0.2
    assert "slower than a K=4" in race.lanes[arms[3]].out


def test_everybody_runs_the_same_groups_beside_plain_decoding() -> None:
    arms, turns = arms_of("a", 1, 2, 3), []
    answer = scripted({}, 0.3)

    def note(turn: RaceTurn) -> GroupRun:
        turns.append(turn)
        return answer(turn)

    Race(arms, 50).run(note)
    first = [turn for turn in turns if turn.rung == 0]
    by_arm = {arm: [turn.group for turn in first if turn.arm == arm] for arm in (PLAIN_ARM, *arms)}
    assert all(groups == list(range(LEAST_GROUPS)) for groups in by_arm.values())
    assert len({tuple(t.arm for t in first[i : i + 4]) for i in range(0, len(first), 4)}) == 4  # the order turns


def test_equals_are_called_equal_only_when_that_is_sure() -> None:
    arms = arms_of("a", 1, 2)
    quiet, loud = Race(arms, 20), Race(arms, 20)
    quiet.run(scripted({arms[0]: 1.4, arms[1]: 1.4}, 0.001))
    loud.run(scripted({arms[0]: 1.4, arms[1]: 1.4}, 0.5))
    assert quiet.sure
    assert loud.sure == (len(loud.left) == 1 or loud.decided())


def test_who_is_hasty_still_gets_a_first_rung() -> None:
    arms = arms_of("a", 1, 2, 4)
    race = Race(arms, 8)
    race.run(scripted({arms[2]: 2.0}, 0.4), enough=lambda: True)
    assert all(len(race.lanes[arm].runs) == LEAST_GROUPS for arm in (PLAIN_ARM, *arms))


def test_chance_seldom_makes_a_winner_of_equals() -> None:
    """All arms are plain decoding: one is surely slower than another no more often than 5 % would have it."""
    wrong = 0
    for trial in range(120):
        arms, dice = arms_of("a", 1, 2, 3, 4), random.Random(trial)
        race = Race(arms, 64)
        race.run(lambda turn, dice=dice: GroupRun(dice.gauss(1, 0.1), 100))  # type: ignore[misc]
        wrong += any(lane.out.startswith("slower than") for lane in race.lanes.values())
    assert wrong <= 12
