"""`augury tune`: what is tried, what is chosen, and what is said of it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tuning import CHAIN, OTHER, scripted

from augury.config.errors import ConfigError
from augury.config.resolve import resolve
from augury.config.schedule import Schedule
from augury.tools.tune.choose import DO_NOT, UNSURE, USE, choose, ranges, written
from augury.tools.tune.families import Arm, ConfigFamily, families_of
from augury.tools.tune.page import tuning_page
from augury.tools.tune.race import LEAST_GROUPS, GroupRun, Race
from augury.tools.tune.run import TunePlan, groups_of, race_all, split
from augury.tools.tune.screen import report_of, show


def raced(speeds: dict[Arm, float], noise: float = 0.01) -> Race:
    race = Race([*CHAIN.arms, *OTHER.arms], 16)
    race.run(scripted(speeds, noise))
    return race


def test_k_falls_with_the_load() -> None:
    two, four, eight = CHAIN.arms
    races = {
        1: raced({two: 1.2, four: 1.5, eight: 2.0}),
        8: raced({two: 1.1, four: 1.3, eight: 0.9}),
        64: raced({two: 0.9, four: 0.7, eight: 0.5}),
    }
    choice = choose(races, [CHAIN, OTHER])
    assert (choice.verdict, choice.family, choice.ks) == (USE, "ngram", {1: 8, 8: 4, 64: 0})
    assert choice.speculative is not None
    table = choice.speculative["num_speculative_tokens_per_batch_size"]
    assert table == [[1, 2, 8], [3, 22, 4], [23, 64, 0]]
    parsed = resolve(choice.speculative)
    assert parsed is not None and parsed.schedule is not None
    assert [parsed.schedule.at(load) for load in (1, 8, 64, 500)] == [8, 4, 0, 0]


def test_nothing_pays_and_nothing_known_are_told_apart() -> None:
    slow = choose({1: raced(dict.fromkeys([*CHAIN.arms, *OTHER.arms], 0.8))}, [CHAIN, OTHER])
    noisy = choose({1: raced(dict.fromkeys(CHAIN.arms, 1.1), 0.6)}, [CHAIN, OTHER])
    assert (slow.verdict, slow.speculative) == (DO_NOT, None)
    assert (noisy.verdict, noisy.speculative) == (UNSURE, None)


def test_the_family_that_pays_over_all_loads_is_taken() -> None:
    four = OTHER.arms[0]
    races = {1: raced({CHAIN.arms[0]: 1.5, four: 1.4}), 8: raced({CHAIN.arms[0]: 1.0, four: 1.4})}
    assert choose(races, [CHAIN, OTHER]).family == "suffix"


@given(st.dictionaries(st.integers(1, 300), st.integers(0, 8), min_size=1, max_size=6))
def test_a_table_gives_every_load_its_own_k(ks: dict[int, int]) -> None:
    schedule = Schedule.read(ranges(ks), 8)
    assert {load: schedule.at(load) for load in ks} == ks


def test_one_k_for_all_loads_needs_no_table() -> None:
    assert written(CHAIN, {1: 4, 8: 4}) == {**CHAIN.speculative, "num_speculative_tokens": 4}
    grown = ConfigFamily("t", {"method": "eagle", "num_speculative_tokens": 5, "tree": {"top_k": 2}}, (4, 8))
    assert written(grown, {1: 8})["tree"] == {"top_k": 2, "max_nodes": 8}


# --- what is tried -------------------------------------------------------------------------------------------------


def test_families() -> None:
    assert [family.name for family in families_of([], [])] == ["ngram 2-4", "ngram 3-5", "suffix"]
    head = {"method": "eagle3", "model": "some/head", "num_speculative_tokens": 5}
    chain, grown = families_of([], [head], tree=True)
    assert (chain.name, chain.ks) == ("eagle3 head", (1, 2, 3, 4, 5))
    assert (grown.name, grown.tree) == ("eagle3 head tree", True)
    assert resolve(grown.at(16)) is not None
    assert families_of(["suffix"], [], [3, 9])[0].ks == (3, 9)


@pytest.mark.parametrize(
    ("methods", "specs", "ks", "said"),
    [
        (["eagle3"], [], [], "needs a drafter"),
        (["nonsense"], [], [], "unknown"),
        ([], [{"method": "ngram", "num_speculative_tokens": 3}], [4], "3 at most"),
        ([], [{"method": "ngram", "num_speculative_tokens_per_batch_size": [[1, 4, 2]]}], [], "leave it out"),
        ([], [{"method": "ngram", "prompt_lookup_min": -1}], [], "prompt_lookup_min"),
    ],
)
def test_mistakes_are_named(methods: list[str], specs: list[dict[str, Any]], ks: list[int], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        families_of(methods, specs, ks)


@given(st.integers(1, 60), st.integers(1, 40))
def test_groups_have_the_load_and_use_every_prompt_once_where_they_can(prompts: int, load: int) -> None:
    groups = groups_of(list(range(prompts)), load)
    assert all(len(group) == load for group in groups) and len(groups) >= LEAST_GROUPS
    if prompts >= LEAST_GROUPS * load:
        used = [number for group in groups for number in group]
        assert len(used) == len(set(used))


@given(st.integers(1, 100))
def test_prompts_kept_back_had_no_part(count: int) -> None:
    racing, kept = split(count)
    assert set(racing) | set(kept) == set(range(count))
    assert racing == kept or not set(racing) & set(kept)


# --- stopped by its user, and a canary that loses ------------------------------------------------------------------


class Interrupted:
    """Runs a while, then somebody presses Ctrl-C."""

    def __init__(self, runs: int) -> None:
        self.left = runs

    def answer(self, arm: Arm, group: list[int]) -> GroupRun:
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt
        return GroupRun(1.0 / (1 + arm.k), 10 * len(group))


@pytest.mark.parametrize("runs", [0, 1, 5, 20])
def test_what_was_run_before_ctrl_c_is_reported(runs: int, capsys: pytest.CaptureFixture[str]) -> None:
    plan = TunePlan([1, 4], 1.0, 0.95, {"temperature": 0.0, "max_tokens": 8}, list(range(8)), list(range(8)))
    races, stopped = race_all(plan, [CHAIN], Interrupted(runs))  # type: ignore[arg-type]
    assert stopped and list(races) == [1]
    conditions = {
        "racing": 8,
        "held_out": 8,
        "stopped": True,
        "baseline": "plain decoding",
        "model": "m",
        "prompts": "p",
        "max_tokens": 8,
        "temperature": 0.0,
        "confidence": 0.95,
        "seconds": 1.0,
    }
    found = report_of(races, [CHAIN], choose(races, [CHAIN]), {}, {}, conditions)
    show(found)
    assert "Stopped early" in capsys.readouterr().out
    assert "<svg" in tuning_page(found)


def test_a_canary_that_loses_does_not_lead() -> None:
    canary = ConfigFamily("canary", {}, (0,))
    race = Race(canary.arms, 12)
    race.run(scripted({canary.arms[0]: 0.8}))
    choice = choose({4: race}, [canary], "http://a as it runs")
    assert choice.verdict == DO_NOT and "http://a as it runs" in choice.reason
    better = Race(canary.arms, 12)
    better.run(scripted({canary.arms[0]: 1.5}))
    choice = choose({4: better}, [canary])
    assert (choice.verdict, choice.family, choice.speculative) == (USE, "canary", None)
