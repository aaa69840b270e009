"""The capacity model and its simulation: exact cases, laws of queues, and the command from end to end."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from augury.cli import app
from augury.tools.capacity.model import Load, expected, needed, work_of
from augury.tools.capacity.pace import Pace, speculation
from augury.tools.capacity.plan import plan, search
from augury.tools.capacity.replica_model import Cache, ReplicaModel, RequestUnderWay
from augury.tools.capacity.sessions import BLOCK, SessionShape, Turn, sessions_of
from augury.tools.capacity.simulate import Simulation
from augury.tools.replay.tokens import Script

PACE = Pace((0.0, *(0.010 + 0.001 * n for n in range(16))), 1e-4, 1.0, 1 << 20)
CHAT = SessionShape((Turn(320, 21), Turn(400, 21), Turn(480, 21)), 160, b"system")
LOAD = Load(rate=60.0, think=1.0, percentile=0.95, ttft=0.5, tpot=0.030)


# --- sessions --------------------------------------------------------------------------------------------------------


def script(*parts: tuple[int, int], seed: int, head: int = 0, tenant: str = "") -> Script:
    """Prompts and answers of random tokens, so many each; the first tokens are everybody's."""
    length = sum(map(sum, parts))
    text = np.random.default_rng(seed).integers(0, 1000, length)
    text[:head] = np.arange(head)
    spans, at = [], 0
    for prompt, answer in parts:
        spans.append((at + prompt, at + prompt + answer))
        at += prompt + answer
    return Script(text, spans, "", tenant)


def test_what_sessions_share_is_counted_in_whole_blocks_and_by_tenant() -> None:
    found = sessions_of(
        [
            script((100, 10), (20, 5), seed=1, head=70),
            script((90, 10), seed=2, head=70),
            script((90, 10), seed=3, head=70, tenant="another"),
        ]
    )
    assert [session.turns for session in found] == [(Turn(100, 10), Turn(130, 5)), (Turn(90, 10),), (Turn(90, 10),)]
    assert [session.head for session in found] == [64, 64, 0] and found[0].beginning == found[1].beginning
    assert [found[0].unread(0), found[0].unread(1)] == [36, 130 - 110 // BLOCK * BLOCK]


def test_a_record_that_goes_on_from_another_takes_it_in() -> None:
    whole = script((100, 10), (20, 5), seed=1)
    first = Script(whole.text[:110], whole.spans[:1], "", "")
    assert [session.turns for session in sessions_of([first, whole])] == [(Turn(100, 10), Turn(130, 5))]


# --- one replica -----------------------------------------------------------------------------------------------------


def finish(model: ReplicaModel) -> list[RequestUnderWay]:
    ended = []
    while (at := model.next()) is not None:
        ended += model.advance(at)
    return ended


def test_one_request_alone_takes_its_reading_and_its_steps() -> None:
    model = ReplicaModel(PACE)
    model.take(RequestUnderWay(CHAT, 1, 0, 0.0, prompt=320), 0.0)
    (asked,) = finish(model)
    assert asked.first == pytest.approx(320 * 1e-4 + 0.010)
    assert asked.ended == pytest.approx(320 * 1e-4 + 21 * 0.010)


def test_two_requests_share_steps_and_the_second_finds_the_beginning() -> None:
    model = ReplicaModel(PACE)
    for instance in (1, 2):
        model.take(RequestUnderWay(CHAT, instance, 0, 0.0, prompt=320), 0.0)
    first, second = finish(model)
    assert (first.found, second.found) == (0, 160)
    assert first.ended == pytest.approx(480 * 1e-4 + 21 * 0.011)  # both prompts are read before a step is run


def test_a_request_beyond_the_slots_waits() -> None:
    model = ReplicaModel(replace(PACE, step=PACE.step[:2]))
    for instance in (1, 2):
        model.take(RequestUnderWay(CHAT, instance, 0, 0.0, prompt=320), 0.0)
    first, second = finish(model)
    assert second.ended == pytest.approx(first.ended + 160 * 1e-4 + 21 * 0.010)


def test_a_cache_finds_a_session_again_until_others_push_it_out() -> None:
    cache = Cache(1000)
    turn = RequestUnderWay(CHAT, 1, 1, 0.0, prompt=400)
    cache.keep(RequestUnderWay(CHAT, 1, 0, 0.0, prompt=320), 341)
    assert cache.find(turn) == 341 // BLOCK * BLOCK
    cache.keep(RequestUnderWay(CHAT, 2, 0, 0.0, prompt=320), 950)
    assert cache.find(turn) == 160  # the beginning was used in between
    alone = replace(CHAT, head=0, beginning=b"")
    assert Cache(1000).find(RequestUnderWay(alone, 1, 0, 0.0, prompt=320)) == 0


# --- the closed form -------------------------------------------------------------------------------------------------


def test_more_replicas_are_never_worse_and_no_speed_is_below_a_step() -> None:
    work = work_of([CHAT], PACE, 0.95)
    figures = [expected(work, PACE, LOAD, n) for n in range(1, 60)]
    assert all(a.ttft >= b.ttft and a.tpot >= b.tpot for a, b in pairwise(figures))
    assert figures[0].tpot == math.inf and figures[-1].tpot >= PACE.step[1]
    assert needed(work, PACE, replace(LOAD, tpot=0.009), 1000) is None


def test_speculation_counts_steps_without_a_draft() -> None:
    profile = {"mean_accept_length": 3.0, "num_speculative_tokens": 4, "replay": {"share_drafted": 0.5}}
    assert speculation(profile) == (2.0, 3.0) and speculation(None) == (1.0, 1.0)


# --- the fleet -------------------------------------------------------------------------------------------------------


def test_littles_law_holds_in_the_simulation() -> None:
    """Requests at a time are arrivals times the time each takes: from the definition, whatever the model."""
    outcome = Simulation([CHAT], PACE, LOAD, 4).run(0.4)
    each = (outcome.ttft[50] + 20 * outcome.tpot[50]) * LOAD.rate / 4
    assert outcome.running == pytest.approx(each, rel=0.25)


def test_stickiness_keeps_sessions_and_raises_hits() -> None:
    sticky, spread = (Simulation([CHAT], PACE, LOAD, 6, sticky).run(0.4) for sticky in (True, False))
    assert sticky.held > 0.97 > 0.5 > spread.held
    assert sticky.hits > spread.hits + 0.15
    ideal = 1 - sum(CHAT.unread(n) for n in range(3)) / sum(turn.prompt for turn in CHAT.turns)
    assert sticky.hits == pytest.approx(ideal, abs=0.03)


def test_a_simulation_repeats_exactly() -> None:
    assert Simulation([CHAT], PACE, LOAD, 3).run(0.4) == Simulation([CHAT], PACE, LOAD, 3).run(0.4)


def test_a_fleet_that_cannot_keep_up_is_told_from_one_that_can() -> None:
    assert not Simulation([CHAT], PACE, replace(LOAD, rate=400.0), 2).run(0.4).meets(LOAD)
    assert Simulation([CHAT], PACE, LOAD, 12).run(0.4).meets(LOAD)


@given(answer=st.integers(1, 400), start=st.integers(1, 400))
def test_the_search_finds_the_fewest(answer: int, start: int) -> None:
    asked: list[int] = []

    def good(n: int) -> bool:
        asked.append(n)
        return n >= answer

    found = search(start, 300, good)
    if answer > 300:
        assert found is None
    else:
        assert found is not None and answer <= found <= answer + answer // 40
    assert len(asked) == len(set(asked)) <= 60


def test_a_plan_is_the_fewest_that_a_simulation_passes_and_the_model_is_near() -> None:
    said: list[str] = []
    found = plan([CHAT], PACE, LOAD, 40, said.append)
    assert found.best is not None and found.best.meets(LOAD) and said
    fewer = [outcome for outcome in found.tried if outcome.replicas == found.best.replicas - 1]
    assert found.best.replicas == 1 or not fewer[0].meets(LOAD)
    assert found.by_model is not None and 0.6 < found.by_model / found.best.replicas < 1.7


def test_a_large_fleet_is_simulated_whole() -> None:
    slow = replace(PACE, step=(0.0, 0.05, 0.08))
    found = plan([SessionShape((Turn(64, 5),), 0, b"")], slow, Load(260.0, 0.0, 0.9, 0.5, 0.09), 1000, lambda _: None)
    assert found.best is not None and found.best.replicas > 48
    assert {outcome.replicas for outcome in found.tried} >= {found.best.replicas}


# --- the command -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("capacity") / "trace.jsonl"
    rules = "Answer as a clerk of the airline would. " * 20
    with path.open("w") as file:
        for n in range(6):
            turns = [{"role": "system", "content": rules}]
            for turn in range(3):
                turns.append({"role": "user", "content": f"question {n} {turn} " * 5})
                turns.append({"role": "assistant", "content": f"answer {n} {turn} " * 12})
            file.write(json.dumps({"messages": turns}) + "\n")
    return path


WORDS = ("--target", "llama-3.1-8b", "--gpu", "H200", "--tokenizer", "words", "--think", "1")


def test_the_command_says_how_many(trace: Path) -> None:
    words = ["capacity", str(trace), *WORDS, "--rate", "100", "--tpot", "12", "--json"]
    result = CliRunner().invoke(app, words)
    found = json.loads(result.stdout)
    assert result.exit_code == 0 and found["gpus"] == found["replicas"] * found["gpus_per_replica"] >= 1
    best = next(row for row in found["by_replicas"] if row["replicas"] == found["replicas"])
    assert best["tpot_at_percentile_s"] <= 0.012 and best["ttft_at_percentile_s"] <= 1.0
    screen = CliRunner().invoke(app, words[:-1])
    assert screen.exit_code == 0 and f"{found['replicas']} replicas" in screen.stdout


def test_what_no_number_can_give_is_told(trace: Path) -> None:
    words = ["capacity", str(trace), *WORDS, "--rate", "100", "--tpot", "0.5", "--max-replicas", "4", "--json"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 1 and json.loads(result.stdout)["replicas"] is None


def test_a_picture_is_drawn(trace: Path, tmp_path: Path) -> None:
    words = ["capacity", str(trace), *WORDS, "--rate", "20", "--plot", str(tmp_path / "plan.png")]
    assert CliRunner().invoke(app, words).exit_code == 0
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")
