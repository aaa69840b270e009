"""`augury tune`: the race against scripted clocks, the choice, and real engines and servers on toy models."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cycling import QUESTION, cycling_model
from hypothesis import given
from hypothesis import strategies as st
from served import NGRAM, Served, served
from typer.testing import CliRunner

from augury.cli import app
from augury.config.errors import ConfigError
from augury.config.resolve import resolve
from augury.config.sampling import SamplingParams
from augury.config.schedule import Schedule
from augury.tools.tune.choose import DO_NOT, UNSURE, USE, choose, ranges, written
from augury.tools.tune.families import PLAIN_ARM, Arm, Family, families_of
from augury.tools.tune.intervals import ratio, student
from augury.tools.tune.page import tuning_page
from augury.tools.tune.prompts import conversations, token_ids
from augury.tools.tune.race import LEAST_GROUPS, GroupRun, Race, RaceTurn, size
from augury.tools.tune.run import TunePlan, groups_of, race_all, split
from augury.tools.tune.screen import report_of, show

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


def scripted(speeds: dict[Arm, float], noise: float = 0.02) -> Callable[[RaceTurn], GroupRun]:
    """A runner whose arms are as fast as told, on groups that differ, on a machine with noise."""
    dice = random.Random(3)

    def answer(turn: RaceTurn) -> GroupRun:
        weight = 1 + (turn.group % 5) / 5
        return GroupRun(weight / speeds.get(turn.arm, 1.0) * dice.gauss(1, noise), 100, 10, 40, 20)

    return answer


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


# --- the choice ----------------------------------------------------------------------------------------------------

CHAIN = Family("ngram", {"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 4}, (2, 4, 8))
OTHER = Family("suffix", {"method": "suffix"}, (4,))


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
    grown = Family("t", {"method": "eagle", "num_speculative_tokens": 5, "tree": {"top_k": 2}}, (4, 8))
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


# --- for real ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return cycling_model(tmp_path_factory.mktemp("cycling"))


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("prompts") / "prompts.txt"
    path.write_text("".join(f"{QUESTION} {'abc'[i % 3]}{i}\n" for i in range(16)))
    return path


def run(*words: str) -> Any:
    return CliRunner().invoke(app, ["tune", *words])


def test_the_toy_that_repeats_itself(model: Path, prompts: Path, tmp_path: Path) -> None:
    """It says one line over and over: look-up drafts are accepted, and the tuner must find that."""
    out, page = tmp_path / "sc.json", tmp_path / "tune.html"
    words = ["--model", str(model), "--prompts", str(prompts), "--methods", "ngram", "--tokens", "1,4", "--concurrency"]
    words += ["1,2", "--max-tokens", "96", "--minutes", "0.3", "--out", str(out), "--report", str(page)]
    done = run(*words, "--json")
    found = json.loads(done.stdout)
    sure = found["choice"]["verdict"] == USE  # a busy machine may leave it in doubt
    assert (done.exit_code, out.exists(), bool(found["confirmed"])) == (0 if sure else 1, sure, sure)
    if sure:
        assert found["choice"]["speculative_config"] == json.loads(out.read_text())
        assert resolve(found["choice"]["speculative_config"]) is not None
        assert {entry["concurrency"] for entry in found["confirmed"]} == {1, 2}
    for load in found["loads"]:
        arms = {arm["name"]: arm for arm in load["arms"]}
        assert arms["plain"]["speed_up"] == 1 and arms["plain"]["draft_acceptance_rate"] == 0
        assert arms["ngram 2-4 K=4"]["draft_acceptance_rate"] > 0.6
        assert arms["ngram 2-4 K=4"]["mean_acceptance_length"] > arms["ngram 2-4 K=1"]["mean_acceptance_length"]
    text = page.read_text()
    assert "<svg" in text and "http" not in text.replace("http-equiv", "")


def test_a_drafter_that_cannot_be_loaded_is_left_out(model: Path, prompts: Path, tmp_path: Path) -> None:
    bad = json.dumps({"method": "eagle3", "model": str(tmp_path / "nothing"), "num_speculative_tokens": 2})
    words = ["--model", str(model), "--prompts", str(prompts), "--tokens", "2", "--concurrency", "1"]
    words += ["--max-tokens", "16"]
    done = run(*words, "--minutes", "0", "--methods", "ngram_gpu", "-sc", bad, "--json")
    found = json.loads(done.stdout)
    assert list(found["left_out"]) == ["eagle3 nothing"]
    alone = run(*words, "-sc", bad)
    assert alone.exit_code == 2 and "Traceback" not in alone.output


def test_engines_share_the_weights(model: Path) -> None:
    from augury.engine.llm import LLM

    options = {"device": "cpu", "max_model_len": 256, "max_num_seqs": 2}
    one = LLM(model, **options)
    two = LLM(model, weights_of=one, speculative_config=NGRAM, **options)
    greedy = SamplingParams(temperature=0, max_tokens=60)
    answers = [llm.generate(QUESTION, greedy, use_tqdm=False)[0].outputs[0].token_ids for llm in (one, two, one)]
    assert answers[0] == answers[1] == answers[2]
    assert two.engine.target is not one.engine.target and two.engine.target.cache is not one.engine.target.cache
    assert two.engine.target._embedding is one.engine.target._embedding  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="max_model_len differs"):
        LLM(model, weights_of=one, device="cpu", max_model_len=128)


@pytest.fixture(scope="module")
def server(model: Path) -> Iterator[Served]:
    with served(model) as running:
        yield running


def test_a_server_of_ours_by_its_requests(server: Served, prompts: Path) -> None:
    words = ["--prompts", str(prompts), "--concurrency", "2", "--max-tokens", "64", "--minutes", "0", "--json"]
    done = run(server.url, *words)
    assert done.exit_code in (0, 1), done.output
    found = json.loads(done.stdout)
    arms = {arm["name"]: arm for arm in found["loads"][0]["arms"]}
    assert set(arms) == {"plain", "server K=1", "server K=2", "server K=3", "server K=4"}
    assert arms["plain"]["draft_acceptance_rate"] == 0 and arms["server K=4"]["draft_acceptance_rate"] > 0.6
    assert arms["server K=1"]["mean_acceptance_length"] <= 2
    canary = json.loads(run(server.url, "--canary-url", server.url, *words).stdout)
    assert {arm["name"] for arm in canary["loads"][0]["arms"]} == {"plain", "canary"}
    refused = run(server.url, "--tokens", "9", *words)
    assert refused.exit_code == 2 and "4 at most" in refused.output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["http://127.0.0.1:9"], "is the server running"),
        (["http://127.0.0.1:9", "--methods", "ngram"], "a server has its own method"),
        (["--canary-url", "http://x"], "needs the URL"),
        (["--concurrency", "0"], "--concurrency 0"),
        (["--prompts", "absent.txt"], "neither a file"),
        (["--out", "absent/folder/sc.json"], "no directory"),
    ],
)
def test_command_lines_that_cannot_be(words: list[str], said: str) -> None:
    done = run(*words)
    assert done.exit_code == 2 and said in done.output and "Traceback" not in done.output


# --- found by a tester -----------------------------------------------------------------------------------------------


def test_prompts_in_the_forms_that_people_have(tmp_path: Path) -> None:
    chats = tmp_path / "chats.jsonl"
    chats.write_text('{"messages": [{"role": "user", "content": "hello"}]}\n' * 2)
    lines = tmp_path / "lines.txt"
    lines.write_text("one\ntwo\n")
    assert [body["messages"][-1]["content"] for body in conversations([str(chats), str(lines)])] == [
        "hello",
        "hello",
        "one",
        "two",
    ]
    binary = tmp_path / "x.bin"
    binary.write_bytes(bytes(range(256)))
    with pytest.raises(ConfigError, match=r"x\.bin"):
        conversations([str(binary)])


def test_a_prompt_without_room_is_named(model: Path) -> None:
    bodies = [{"messages": [{"role": "user", "content": text}]} for text in ("x", "long " * 400)]
    with pytest.raises(ConfigError, match=r"prompt 2 \('long long"):
        token_ids(bodies, str(model), 16)


def test_outputs_that_cannot_be_written_are_told_before_the_race(tmp_path: Path) -> None:
    done = run("--report", str(tmp_path), "--model", "nowhere")
    assert done.exit_code == 2 and "cannot be written" in done.output


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
    assert "Stopped before its end" in capsys.readouterr().out
    assert "<svg" in tuning_page(found)


def test_a_canary_that_loses_does_not_lead() -> None:
    canary = Family("canary", {}, (0,))
    race = Race(canary.arms, 12)
    race.run(scripted({canary.arms[0]: 0.8}))
    choice = choose({4: race}, [canary], "http://a as it runs")
    assert choice.verdict == DO_NOT and "http://a as it runs" in choice.reason
    better = Race(canary.arms, 12)
    better.run(scripted({canary.arms[0]: 1.5}))
    choice = choose({4: better}, [canary])
    assert (choice.verdict, choice.family, choice.speculative) == (USE, "canary", None)
