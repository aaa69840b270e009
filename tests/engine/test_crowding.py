"""Blocks of the KV cache are shared: who fills it gives way to who holds little of it."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from queued import BLOCK, ask, make_request, make_scheduler, run_pass

from augury.engine.crowding import crowding, giving_way
from augury.engine.request import Request
from augury.engine.scheduler import Scheduler


def holding(key: str, job: str, arrival: int, blocks: int) -> Request:
    request = make_request(arrival, [1])
    request.client, request.blocks = (key, job), list(range(blocks))
    return request


def test_the_newest_of_who_holds_twice_as_much_gives_way_and_never_its_oldest() -> None:
    running = [holding("a", "1", 1, 5), holding("a", "2", 2, 1), holding("b", "3", 3, 2)]
    assert crowding(running, running[2], 1) is running[1]  # 6 of 2 x (2 + 1)
    assert crowding(running, running[2], 2) is None
    assert crowding(running[::2], running[2], 0) is None, "a client's only request stays"
    same_key = [holding("a", "1", 1, 4), holding("a", "1", 2, 4), holding("a", "2", 3, 1)]
    assert crowding(same_key, same_key[2], 1) is same_key[1]
    assert crowding(same_key, same_key[0], 1) is None and crowding([], same_key[0], 1) is None


def test_who_holds_the_most_makes_room_by_itself() -> None:
    running = [holding("a", "1", 1, 5), holding("a", "1", 2, 3), holding("b", "3", 3, 2)]
    assert giving_way(running, running[0], 1) is running[1], "not the newcomer"
    assert giving_way(running, running[1], 1) is running[1]
    assert giving_way(running[::2], running[0], 1) is running[2], "the oldest of all gets on"
    assert giving_way(running[:1], running[0], 1) is running[0]


def filled(key: str, job: str) -> tuple[Scheduler, Request]:
    """Four long answers hold every block when a short request comes."""
    scheduler = make_scheduler(blocks=25, slots=8, budget=64)
    ask(scheduler, "a", "1", 0, 4, answer=1000)
    while scheduler.pool.num_free:
        run_pass(scheduler)
    (newcomer,) = ask(scheduler, key, job, 5000)
    return scheduler, newcomer


def test_a_newcomer_gets_in_and_ends_although_another_has_filled_the_cache() -> None:
    for key, job in (("b", "2"), ("a", "2")):
        scheduler, newcomer = filled(key, job)
        passes = 0
        while newcomer.finish_reason is None:
            run_pass(scheduler)
            passes += 1
        assert passes <= 12 and newcomer.preemptions == 0  # eight tokens, and some room to be made
        assert scheduler.stats.preemptions > 0 and scheduler.running[0].preemptions == 0
        scheduler.pool.check()


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("xy"), st.integers(1, 20)), min_size=1, max_size=20),
    st.integers(6, 20),
    st.integers(0, 10_000),
)
def test_everyone_finishes_when_blocks_are_few(asked: list[tuple[str, str, int]], blocks: int, dice: int) -> None:
    scheduler = make_scheduler(blocks=1 + blocks, slots=4, budget=32)
    longest = BLOCK * blocks - 4
    requests: list[Request] = []
    for number, (key, job, answer) in enumerate(asked):
        requests += ask(scheduler, key, job, number, 1, min(answer, longest))
        if (dice >> (number % 13)) & 1:
            run_pass(scheduler)
    for _ in range(100 * len(asked)):
        run_pass(scheduler)
        scheduler.pool.check()
    assert all(request.finish_reason == "length" for request in requests)
    assert scheduler.pool.num_free == blocks
