"""Fair turns: nobody stands behind all that another client has asked for."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from queued import ask, make_request, make_scheduler, run_pass

from augury import LLM, SamplingParams
from augury.engine.request import Request
from augury.engine.scheduler import Scheduler
from augury.engine.turns import SHARE, Turns


def seated(scheduler: Scheduler) -> Counter[Any]:
    return Counter(request.client for request in scheduler.running)


@pytest.mark.parametrize(("key", "job"), [("b", "9"), ("a", "9")], ids=["another key", "the same key"])
def test_a_newcomer_gets_a_slot_in_the_next_pass_although_a_thousand_answers_wait(key: str, job: str) -> None:
    scheduler = make_scheduler(blocks=200, slots=8, budget=64)
    many = ask(scheduler, "a", "1", 0, 1024, answer=1000)
    run_pass(scheduler)
    assert len(scheduler.running) == 8 and len(scheduler.waiting) == 1016
    (newcomer,) = ask(scheduler, key, job, 5000)
    run_pass(scheduler)
    assert newcomer in scheduler.running and seated(scheduler)["a", "1"] == 7
    assert many[7].preemptions == 1 and scheduler.stats.preemptions == 1  # the newest that ran, and nobody else
    while newcomer.finish_reason is None:
        run_pass(scheduler)
    run_pass(scheduler)
    assert many[7].slot >= 0 and scheduler.stats.preemptions == 1  # it is the next of its job again


def test_a_newcomer_gets_the_first_slot_that_is_free_where_nobody_holds_many() -> None:
    scheduler = make_scheduler(blocks=200, slots=1, budget=64)
    ask(scheduler, "", "1", 0, 1024, answer=3)
    run_pass(scheduler)
    running = scheduler.running[0]
    (newcomer,) = ask(scheduler, "", "2", 5000)
    while running.finish_reason is None:
        assert scheduler.running == [running]  # one slot cannot be shared
        run_pass(scheduler)
    run_pass(scheduler)
    assert scheduler.running == [newcomer]


def test_slots_are_shared_by_keys_first_and_by_requests_of_a_key_second() -> None:
    scheduler = make_scheduler(blocks=200, slots=8, budget=64)
    for number in range(6):  # one key with six HTTP requests
        ask(scheduler, "a", f"a{number}", 100 * number, 20, answer=1000)
    ask(scheduler, "b", "b0", 900, 20, answer=1000)
    run_pass(scheduler)
    assert Counter(key for key, _ in seated(scheduler).elements()) == {"a": 4, "b": 4}
    assert [seated(scheduler)["a", f"a{number}"] for number in range(6)] == [1, 1, 1, 1, 0, 0]


def test_who_has_a_fair_share_takes_nothing() -> None:
    """A slot is given up only by those who hold twice as many: else two would take it from each other for ever."""
    scheduler = make_scheduler(blocks=200, slots=8, budget=64)
    ask(scheduler, "a", "1", 0, 20, answer=1000)
    run_pass(scheduler)
    ask(scheduler, "b", "2", 100, 20, answer=1000)
    for _ in range(20):
        run_pass(scheduler)
    assert seated(scheduler) == {("a", "1"): 5, ("b", "2"): 3} and SHARE * (3 + 1) > 5
    assert scheduler.stats.preemptions == 3


def test_nobody_makes_room_while_a_pass_is_under_way() -> None:
    scheduler = make_scheduler(blocks=200, slots=2, budget=64)
    running = ask(scheduler, "a", "1", 0, 2, answer=1000)
    run_pass(scheduler)
    launched = scheduler.plan()
    scheduler.launched(launched)
    ask(scheduler, "b", "2", 100)
    assert scheduler.plan() == [] and scheduler.running == running  # it may end one of them
    for item in launched:
        scheduler.commit(item.request, item.start + item.num_new_tokens, 0, item.request.accept([7], 0))
    assert len(scheduler.plan()) == 2 and seated(scheduler) == {("a", "1"): 1, ("b", "2"): 1}


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("xyz"), st.integers(1, 5)), min_size=1, max_size=40),
    st.integers(1, 5),
    st.integers(0, 10_000),
)
def test_everyone_finishes_and_the_oldest_of_a_client_is_never_the_one_to_leave(
    asked: list[tuple[str, str, int]], slots: int, dice: int
) -> None:
    scheduler = make_scheduler(blocks=200, slots=slots, budget=32)
    requests: list[Request] = []
    preempt = scheduler._preempt

    def watched(request: Request) -> None:
        assert any(r.client[0] == request.client[0] and r.arrival < request.arrival for r in scheduler.running)
        preempt(request)

    scheduler._preempt = watched  # type: ignore[method-assign]
    for number, (key, job, answer) in enumerate(asked):
        requests += ask(scheduler, key, job, number, 1, answer)
        if (dice >> (number % 13)) & 1:
            run_pass(scheduler)
    for _ in range(60 * len(asked)):
        run_pass(scheduler)
    assert all(request.finish_reason == "length" for request in requests)
    assert not scheduler.waiting and not scheduler.running and not list(scheduler.waiting)
    assert not scheduler.waiting._lines and not scheduler.waiting._order  # nothing is kept of who has left


class Plain:
    """The same order by looking at everyone: the names that run least, of those the one longest so."""

    def __init__(self) -> None:
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.since: dict[tuple[str, ...], tuple[int, int]] = {}  # name: (running, when that became so)

    def note(self, now: int) -> None:
        there = {r.client[:level] for r in (*self.waiting, *self.running) for level in (1, 2)}
        held = Counter(r.client[:level] for r in self.running for level in (1, 2))
        before = self.since
        self.since = {
            name: before[name] if name in before and before[name][0] == held[name] else (held[name], now)
            for name in there
        }

    def first(self) -> Request:
        left = self.waiting
        for level in (1, 2):
            chosen = min({r.client[:level] for r in left}, key=self.since.__getitem__)
            left = [r for r in left if r.client[:level] == chosen]
        return min(left, key=lambda r: r.arrival)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from("abc"), st.sampled_from("xy")), max_size=60))
def test_the_order_is_that_of_a_plain_search(played: list[tuple[int, str, str]]) -> None:
    turns, plain = Turns(), Plain()
    for number, (act, key, job) in enumerate(played):
        if act < 2:
            request = make_request(number, [1])
            request.client = key, job
            turns.add(request)
            plain.waiting.append(request)
        elif act == 2 and plain.waiting:
            request = turns.first
            turns.count(request, 1)
            turns.remove(request)
            plain.waiting.remove(request)
            plain.running.append(request)
        elif plain.running:
            turns.count(plain.running.pop(number % len(plain.running)), -1)
        plain.note(number)
        assert set(turns) == set(plain.waiting) and len(turns) == len(plain.waiting)
        assert turns.running == len(plain.running)
        if plain.waiting:
            assert turns.first is plain.first()


def test_what_is_said_does_not_depend_on_turns(toy_model: Any) -> None:
    """Whoever makes room starts over, and says the same."""
    llm = LLM(str(toy_model), device="cpu", max_num_seqs=2, max_model_len=128, seed=3)
    params = SamplingParams(max_tokens=24, temperature=1, seed=5, n=6, ignore_eos=True)
    alone = [
        answer.token_ids
        for answer in llm.generate([{"prompt_token_ids": [1, 2, 3]}], params, use_tqdm=False)[0].outputs
    ]
    requests = llm.intake.requests("many", [1, 2, 3], params)
    for request in requests:
        request.client = "a", "1"
        llm.engine.add(request)
    for _ in range(6):
        llm.engine.step()
    newcomers = llm.intake.requests("new", [1, 2, 3], SamplingParams(max_tokens=4, ignore_eos=True))
    for request in newcomers:
        request.client = "b", "2"
        llm.engine.add(request)
    while llm.engine.busy:
        llm.engine.step()
    assert [request.output for request in requests] == alone
    assert sum(request.preemptions for request in requests) == 1 and newcomers[0].preemptions == 0
