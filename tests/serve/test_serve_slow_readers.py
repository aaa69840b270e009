"""Clients that do not read: their answers wait up to a limit and a time, then they are cut off and cost nothing."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from raw_http import drained, raw_post
from served import Served, served

from augury.serve.backlog import Backlog, Updates, weight
from augury.serve.errors import ApiError
from augury.serve.scope import HANG_UP
from augury.serve.stream import EventStream

# More than a connection's buffers hold, however large the kernel makes them.
FLOOD = {
    "prompt": ["a", "b"],
    "n": 128,
    "max_tokens": 500,
    "ignore_eos": True,
    "temperature": 1,
    "stream": True,
    "return_token_ids": True,
    "logprobs": 20,
}


@pytest.fixture(scope="module")
def server(toy_model: Path) -> Iterator[Served]:
    with served(toy_model, "--write-timeout", "1", spec=None) as running:
        yield running


def deaf(server: Served, body: dict[str, Any]) -> socket.socket:
    """A client that has asked and reads nothing."""
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    raw.connect(("127.0.0.1", server.port))
    raw.settimeout(60)
    raw.sendall(raw_post(body))
    return raw


def test_who_never_reads_loses_the_place(server: Served) -> None:
    with deaf(server, FLOOD) as raw:
        limit = time.monotonic() + 120
        while server.http.get("/load").json()["server_load"] == 0:  # until it has come in
            assert time.monotonic() < limit
        while server.http.get("/load").json()["server_load"]:
            assert time.monotonic() < limit, "it holds its place although it reads nothing"
            time.sleep(0.05)
        server.until_idle()
        assert server.metrics()["vllm:kv_cache_usage_perc"] == 0
        assert b"[DONE]" not in drained(raw)
    assert "Traceback" not in server.log and "ASGI" not in server.log


def test_who_reads_slowly_but_steadily_gets_everything(server: Served) -> None:
    body = {**FLOOD, "prompt": "a", "n": 8, "max_tokens": 300}
    got = b""
    with deaf(server, body) as raw:
        while b"[DONE]" not in got[-100:]:
            piece = raw.recv(1 << 14)
            assert piece, got[-200:]
            got += piece
            time.sleep(0.002)
    assert got.count(b'"finish_reason":"length"') == 8


# --- the backlog -----------------------------------------------------------------------------------------------------


def update(characters: int) -> dict[str, Any]:
    return {"id": 1, "index": 0, "tokens": [1], "text": "x" * characters}


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4000)), max_size=80))
def test_no_queue_and_not_all_of_them_hold_more_than_they_may(played: list[tuple[int, int]]) -> None:
    """Four readers; a size of 0 is one that reads."""

    async def play() -> None:
        each, most = 20_000, 45_000
        backlog = Backlog(each, most)
        queues, told = [Updates(backlog) for _ in range(4)], [0] * 4
        for who, queue in enumerate(queues):
            queue.on_overrun = lambda who=who: told.__setitem__(who, told[who] + 1)  # type: ignore[misc]
        waiting: list[list[int]] = [[] for _ in range(4)]
        for who, size in played:
            if size:
                queues[who].put(who, update(size))
                waiting[who].append(weight(update(size)))
                for other, queue in enumerate(queues):
                    if queue.overrun.is_set():
                        waiting[other] = []
            elif waiting[who]:
                assert (await queues[who].get())[0] == who
                waiting[who].pop(0)
            assert [queue.held for queue in queues] == list(map(sum, waiting))
            assert backlog.held == sum(map(sum, waiting)) <= most and max(map(sum, waiting)) <= each
        for queue, count in zip(queues, told, strict=True):
            assert count == queue.overrun.is_set()
            if queue.overrun.is_set():
                error = (await queue.get())[1]
                assert isinstance(error, ApiError) and error.code == "overrun"

    asyncio.run(play())


def test_the_longest_backlog_is_the_one_that_goes() -> None:
    async def play() -> list[bool]:
        sizes = (100, 1200, 300)
        backlog = Backlog(10**9, sum(weight(update(size)) for size in sizes))
        queues = [Updates(backlog) for _ in range(3)]
        for queue, size in zip(queues, sizes, strict=True):
            queue.put(0, update(size))
        assert not any(queue.overrun.is_set() for queue in queues)
        queues[2].put(0, update(0))
        return [queue.overrun.is_set() for queue in queues]

    assert asyncio.run(play()) == [False, True, False]


def test_a_stream_that_is_cut_off_hangs_up() -> None:
    """Its reader blocks in `send`, where nothing else would reach it."""

    async def play() -> list[str]:
        said: list[str] = []
        left = asyncio.Event()

        async def events() -> AsyncIterator[dict[str, Any]]:
            while True:
                yield {"text": "x"}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.body":
                await asyncio.Event().wait()  # the buffer is full, and stays so

        async def receive() -> dict[str, str]:
            await left.wait()
            return {"type": "http.disconnect"}

        def hang_up() -> None:
            said.append("hung up")
            left.set()

        overrun = asyncio.Event()
        stream = EventStream(events(), lambda: said.append("released"), overrun)
        running = asyncio.create_task(stream({HANG_UP: hang_up}, receive, send))
        await asyncio.sleep(0)
        overrun.set()
        await asyncio.wait_for(running, 10)
        return said

    assert asyncio.run(play()) == ["hung up", "released"]


def test_what_an_update_weighs_grows_with_all_that_it_holds() -> None:
    plain = {"id": 1, "index": 0, "tokens": [1], "text": "x"}
    entry = [[5, -0.5, 1, "x"]] * 21
    draft = {"ids": [1] * 8, "tokens": ["a"] * 8}
    richer = [
        {"text": "x" * 99},
        {"tokens": [1] * 9},
        {"logprobs": [entry]},
        {"trace": {"tokens": [{}], "draft": draft}},
    ]
    assert all(weight({**plain, **more}) > weight(plain) for more in richer)
    assert weight({**plain, "logprobs": [entry]}) >= len(json.dumps(entry))
