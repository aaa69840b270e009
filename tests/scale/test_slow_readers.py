"""Readers who do not read, behind Ray: at its proxy, at the door, and in a replica."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from fleet_functions import EVENTS, Here, Messages, piece, run

from augury.scale.doorstep import Doorstep, middlewares
from augury.scale.ingress import Ingress
from augury.scale.outbox import NotTaken, Outbox
from augury.scale.replica import Replica
from augury.serve.limits import Limits
from augury.serve.scope import HANG_UP, STALLED
from augury.serve.service import Settings


def test_an_outbox_tells_its_age_and_has_a_most() -> None:
    async def work() -> None:
        clock, hung_up = [0.0], []
        box = Outbox(lambda: hung_up.append(1), most=10, now=lambda: clock[0])
        assert box.age() == 0.0
        await box.put(EVENTS)
        clock[0] = 3.0
        await box.put(piece("x" * 1000))  # one that is large by itself is fine
        clock[0] = 5.0
        assert box.age() == 5.0 and not hung_up
        assert await box.take() == [EVENTS, piece("x" * 1000)] and box.age() == 0.0
        for _ in range(11):
            await box.put(piece("x"))
        for _ in range(2):
            with pytest.raises(NotTaken):
                await box.put(piece("x"))
        assert hung_up == [1] and box.age() == 0.0
        box.end()
        assert await box.take() == []

    run(work())


def test_a_replica_ends_an_answer_that_nobody_takes() -> None:
    async def work() -> None:
        replica, seen = Replica(Settings("m", {})), []

        async def app(scope: Any, receive: Any, send: Any) -> None:
            assert (await receive())["body"] == b"body"
            await send(EVENTS)
            for _ in range(20):
                await send(piece("x" * (1 << 20)))
                seen.append(scope[STALLED]())
            scope[HANG_UP]()

        replica._app = app
        with pytest.raises(NotTaken):
            async for _ in replica.answer({}, b"body"):
                raise AssertionError("what waited is forgotten")
        assert len(seen) == 9 and seen[-1] > 0

    run(work())


def test_the_door_lets_go_of_a_client_that_takes_nothing() -> None:
    async def work() -> None:
        async def forever(scope: dict[str, Any], body: bytes) -> AsyncIterator[Messages]:
            yield [EVENTS]
            while True:
                yield [piece("x")]

        async def receive() -> Any:
            if not given:
                given.append(1)
                return {"type": "http.request", "body": b'{"prompt": "x"}', "more_body": False}
            await asyncio.Event().wait()
            return None

        async def send(message: Any) -> None:
            if message["type"] == "http.response.body":
                await asyncio.Event().wait()

        fleet, given = Here(a=forever), []
        door = Ingress(fleet, Limits(write_seconds=0.01))
        await door({"type": "http", "method": "POST", "path": "/v1/completions", "headers": []}, receive, send)
        assert fleet.left == ["a"] and door.at_work["a"] == 0

    run(work())


class Connection:
    """As uvicorn's: sending waits while the buffer is full, and ends when the connection does."""

    def __init__(self, takes: list[int]) -> None:
        self.transport, self.size, self.takes = self, 1 << 16, takes
        self.lost, self.looks = asyncio.Event(), 0

    def get_write_buffer_size(self) -> int:
        self.looks += 1
        self.size -= self.takes.pop(0) if self.takes and self.looks % 2 == 0 else 0
        return self.size

    def abort(self) -> None:
        self.lost.set()

    async def send(self, message: Any) -> None:
        await self.lost.wait()


@pytest.mark.parametrize(("takes", "looks"), [([], 2), ([4096], 4), ([4095, 4096], 2)])
def test_rays_proxy_hangs_up_on_a_client_that_takes_too_little(takes: list[int], looks: int) -> None:
    async def work() -> None:
        async def app(scope: Any, receive: Any, send: Any) -> None:
            await send(piece("x"))

        connection = Connection(takes)
        first = Doorstep(app, write_seconds=0.001)
        await first({"type": "http", "headers": []}, connection.send, connection.send)
        assert connection.lost.is_set() and connection.looks == looks

    run(work())


@pytest.mark.parametrize(
    ("value", "kept"), [(b"req-1.a:b_C", True), (b"x" * 129, False), (b"", False), (b"a b", False), (b"\x7f", False)]
)
def test_request_ids_are_repeated_only_if_they_look_like_one(value: bytes, kept: bool) -> None:
    async def work() -> None:
        async def app(scope: Any, receive: Any, send: Any) -> None:
            seen.extend(scope["headers"])

        seen: list[Any] = []
        [one] = middlewares()
        scope = {"type": "http", "headers": [(b"x-request-id", value), (b"host", b"x")]}
        made = one.cls(app, *one.args, **one.kwargs)
        await made(scope, None, None)  # type: ignore[arg-type]
        assert ((b"x-request-id", value) in seen) == kept and (b"host", b"x") in seen

    run(work())
