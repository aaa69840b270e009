"""Clients that do not read: their answers wait up to a limit and a time, then they are cut off and cost nothing."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from raw_http import drained, raw_post
from served import Served, served

from augury.serve import stream as stream_module
from augury.serve.backlog import Backlog, Updates, weight
from augury.serve.connection import PROGRESS, with_patience
from augury.serve.engine_client import EngineClient
from augury.serve.errors import ApiError
from augury.serve.jobs import Batch
from augury.serve.observatory import Observatory
from augury.serve.scope import HANG_UP, STALLED
from augury.serve.server import SENT, bind
from augury.serve.service import Settings
from augury.serve.stream import EventStream

PATIENCE = 300.0  # seconds that a slow machine may take, well below the write timeout of ten minutes
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
    raw.settimeout(PATIENCE)
    raw.sendall(raw_post(body))
    return raw


def until_generating(server: Served, limit: float) -> None:
    """Until a flood holds all slots and its answers flow.

    By a counter that soon passes what fewer than all of its answers can give: a gauge may go up and down between looks.
    """
    while server.metrics()["vllm:generation_tokens_total"] < 1000:
        assert time.monotonic() < limit
        time.sleep(0.02)


def test_who_never_reads_loses_the_place(server: Served) -> None:
    with deaf(server, FLOOD) as raw:
        limit = time.monotonic() + PATIENCE
        until_generating(server, limit)
        while server.http.get("/load").json()["server_load"]:
            assert time.monotonic() < limit, "it holds its place although it reads nothing"
            time.sleep(0.05)
        server.until_idle()
        assert server.metrics()["vllm:kv_cache_usage_perc"] == 0
        got = drained(raw)  # the end is not there, or it is an error, if the socket still had room for that
        assert b"[DONE]" not in got or b'"code":"overrun"' in got
    assert "Traceback" not in server.log and "ASGI" not in server.log


def test_who_reads_slowly_but_steadily_gets_everything(server: Served) -> None:
    body = {**FLOOD, "prompt": "a", "n": 8, "max_tokens": 120}  # 6 MB: less than may wait for one client
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
        scope = {HANG_UP: hang_up, STALLED: lambda: 0.0}
        stream = EventStream(events(), lambda: said.append("released"), overrun, lambda: False)
        running = asyncio.create_task(stream(scope, receive, send))
        await asyncio.sleep(0)
        overrun.set()
        await asyncio.wait_for(running, 10)
        return said

    assert asyncio.run(play()) == ["hung up", "released"]


def test_a_stream_with_much_to_send_lets_others_in_between() -> None:
    """Neither its events nor the client that takes them ever wait, so nothing else would make it pause."""

    async def play() -> tuple[int, int]:
        sent, others, done = 0, 0, asyncio.Event()

        async def events() -> AsyncIterator[dict[str, Any]]:
            for _ in range(20):
                begun = time.monotonic()
                while time.monotonic() - begun <= stream_module.SLICE:  # as long as one may take
                    pass
                yield {"text": "x"}

        async def send(message: Any) -> None:
            nonlocal sent
            sent += message["type"] == "http.response.body"

        async def receive() -> dict[str, str]:
            await done.wait()
            return {"type": "http.disconnect"}

        async def other() -> None:
            nonlocal others
            while sent < 20:
                others += 1
                await asyncio.sleep(0)

        beside = asyncio.create_task(other())
        stream = EventStream(events(), lambda: None, asyncio.Event(), lambda: False)
        await stream({HANG_UP: done.set, STALLED: lambda: 0.0}, receive, send)
        await beside
        return sent, others

    sent, others = asyncio.run(play())
    assert sent == 21 and others >= 20  # the last is [DONE]


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


# --- others who wait ------------------------------------------------------------------------------------------------


def cut_off_by(monkeypatch: pytest.MonkeyPatch, stalled: float, in_the_way: bool) -> bool:
    """Whether a stream is cut off whose client has stalled for so long."""
    monkeypatch.setattr(stream_module, "STALL", 0.01)

    async def play() -> bool:
        looks, left = [0], asyncio.Event()

        async def events() -> AsyncIterator[dict[str, Any]]:
            await left.wait()
            yield {"text": "x"}

        def asked() -> float:
            looks[0] += 1
            if looks[0] == 20:  # often enough to see that nothing comes of it
                left.set()
            return stalled

        async def send(message: Any) -> None:
            pass

        async def receive() -> dict[str, str]:
            await overrun.wait()
            return {"type": "http.disconnect"}

        overrun = asyncio.Event()
        stream = EventStream(events(), lambda: None, overrun, lambda: in_the_way)
        await asyncio.wait_for(stream({HANG_UP: left.set, STALLED: asked}, receive, send), 20)
        return overrun.is_set()

    return asyncio.run(play())


@pytest.mark.parametrize(("stalled", "in_the_way"), [(0.0, False), (0.0, True), (5.0, False), (5.0, True)])
def test_who_takes_nothing_is_cut_off_once_others_wait(
    monkeypatch: pytest.MonkeyPatch, stalled: float, in_the_way: bool
) -> None:
    assert cut_off_by(monkeypatch, stalled, in_the_way) == (stalled > 0 and in_the_way)


def test_a_batch_is_in_the_way_of_others_only_while_the_engine_works_on_it() -> None:
    async def play() -> None:
        client = EngineClient("toy", {}, Observatory(), print)
        slow, other = Batch(2, client._backlog), Batch(1, client._backlog)
        for number, batch in ((1, slow), (2, other)):
            client._jobs[number] = batch.add(number, 3, 8)
        assert not client.in_the_way(slow)  # nobody waits for a slot
        client._waiting = 1
        assert client.in_the_way(slow)
        client._jobs[2].put({**update(1), "id": 2})
        assert not client.in_the_way(slow)  # the one who waits is its own second answer
        assert client.in_the_way(other)
        del client._jobs[2]
        assert not client.in_the_way(other)  # the engine has finished it

    asyncio.run(play())


def test_a_client_stalls_while_it_takes_nothing_of_a_full_buffer() -> None:
    left, now = [100_000], [0.0]
    patient = with_patience(30, 30)
    protocol = patient.__new__(patient)
    protocol.transport = SimpleNamespace(get_write_buffer_size=lambda: left[0])
    protocol.loop = SimpleNamespace(time=lambda: now[0], call_later=lambda *_: SimpleNamespace(cancel=lambda: None))
    protocol.flow = SimpleNamespace(pause_writing=lambda: None, resume_writing=lambda: None)
    stalls = []
    for act, later in (("", 5), ("pause", 0), ("", 3), ("take", 2), ("", 4), ("crawl", 1), ("resume", 1), ("", 9)):
        now[0] += later
        left[0] -= {"take": PROGRESS, "crawl": PROGRESS - 1}.get(act, 0)
        if act in ("pause", "resume"):
            getattr(protocol, f"{act}_writing")()
        stalls.append(protocol._stalled())  # type: ignore[attr-defined]  # our subclass, as uvicorn builds it
    assert stalls == [0, 0, 3, 0, 4, 5, 0, 0]


def test_the_system_holds_little_for_a_client_that_does_not_read() -> None:
    with bind(Settings("toy", {}, port=0)) as listening:
        assert listening.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) <= 2 * SENT


@pytest.fixture(scope="module")
def narrow(toy_model: Path) -> Iterator[Served]:
    with served(toy_model, "--write-timeout", "600", "--max-num-seqs", "4", spec=None) as running:
        yield running


def test_a_newcomer_is_served_although_nobody_reads_what_holds_all_slots(narrow: Served) -> None:
    """The write timeout would come after ten minutes."""
    with deaf(narrow, FLOOD), deaf(narrow, FLOOD):
        limit = time.monotonic() + PATIENCE
        until_generating(narrow, limit)
        asked = {"prompt": "x", "max_tokens": 4, "ignore_eos": True}
        for _ in range(3):
            assert narrow.http.post("/v1/completions", json=asked, timeout=PATIENCE).status_code == 200
        while narrow.http.get("/load").json()["server_load"]:  # each of the two waits for the other's slots
            assert time.monotonic() < limit, "they hold their slots although they read nothing"
            time.sleep(0.05)
        narrow.until_idle()
    assert "Traceback" not in narrow.log and "ASGI" not in narrow.log
