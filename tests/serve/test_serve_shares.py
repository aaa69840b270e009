"""One key takes all it can get, and every other key still has its part."""

from __future__ import annotations

import asyncio
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from augury.serve.costs import Scores
from augury.serve.errors import ApiError
from augury.serve.jobs import ANSWERS, check_room
from augury.serve.limits import Gate, Limits
from augury.serve.shares import Shares


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 60), st.integers(1, 8), st.lists(st.tuples(st.integers(0, 7), st.integers(-9, 30)), max_size=40))
def test_a_part_is_always_there_and_nothing_is_given_twice(
    places: int, keys: int, asked: list[tuple[int, int]]
) -> None:
    shares, held = Shares(places, keys), Counter[str]()
    for number, more in asked:
        key = str(number % keys)
        if more < 0:
            held[key] = max(0, held[key] + more)
        elif shares.fit(held, key, more):
            held[key] += more
        assert held.total() <= places
        for other in map(str, range(keys)):
            assert held[other] >= shares.part or shares.fit(held, other, shares.part - held[other])


@pytest.mark.parametrize(("keys", "first", "second"), [(1, 100, 0), (2, 75, 25), (5, 60, 10)])
def test_what_the_first_key_and_then_the_second_can_have(keys: int, first: int, second: int) -> None:
    shares, held = Shares(100, keys), {"0": 0, "1": 0}
    for key in held:
        while shares.fit(held, key, 1):
            held[key] += 1
    assert held == {"0": first, "1": second}


def answers(client: str, many: int) -> list[Any]:
    """Jobs of one answer each."""
    return [SimpleNamespace(n=1, ended=(), batch=SimpleNamespace(client=client))] * many


def test_one_key_cannot_take_all_answers() -> None:
    shares = Shares(ANSWERS, 2)
    most = ANSWERS * 3 // 4
    check_room(answers("0", most - 1), shares, "0", 1)
    with pytest.raises(ApiError, match="for this key and 1 more would exceed its share") as caught:
        check_room(answers("0", most), shares, "0", 1)
    assert caught.value.status == 429
    check_room(answers("0", most), shares, "1", ANSWERS - most)


def test_one_key_cannot_take_all_log_probabilities() -> None:
    scores = Scores(100, keys=2)
    scores.take(75, "0")
    with pytest.raises(ApiError):
        scores.take(1, "0")
    scores.take(25, "1")
    scores.give(75, "0")
    scores.take(50, "1")
    assert scores.held == {"0": 0, "1": 75}


def test_one_key_cannot_take_all_requests() -> None:
    """Twelve at a time, two keys: three places are set aside for each."""
    over = asyncio.Event()
    refused: list[str] = []
    statuses: list[int] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await over.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"{}", "more_body": False}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    async def play() -> None:
        gate = Gate(app, Limits(api_keys=["a", "b"], concurrent=12), refused.append)
        head = {"type": "http", "path": "/v1/completions", "method": "POST"}

        def ask(key: str) -> Any:
            scope = {**head, "headers": [(b"authorization", f"Bearer {key}".encode())]}
            return asyncio.create_task(gate(scope, receive, send))

        tasks = [ask("a") for _ in range(20)]
        await asyncio.sleep(0)
        while len(refused) < 20 - 9:
            await asyncio.sleep(0)
        tasks += [ask("b") for _ in range(3)]
        while gate.at_work < 12:
            await asyncio.sleep(0)
        assert statuses == [429] * 11
        over.set()
        await asyncio.gather(*tasks)
        assert sorted(statuses) == [200] * 12 + [429] * 11 and gate.at_work == 0

    asyncio.run(asyncio.wait_for(play(), 60))
