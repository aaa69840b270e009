"""The webhook under many bodies and slow objects: bounded memory, answers in time, 503 where that cannot be."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from typing import Any

import pytest

from augury.config.errors import ConfigError
from augury.tools.doctor.webhook import app, http
from augury.tools.doctor.webhook.app import HttpReply, Webhook
from augury.tools.doctor.webhook.http import WebhookListener
from augury.tools.doctor.webhook.judge import AdmissionCase, ToldFinding
from augury.tools.doctor.webhook.review import read_review
from augury.tools.doctor.webhook.room import SMALL

HEAD = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}
REVIEW = json.dumps({**HEAD, "request": {"uid": "u", "operation": "CREATE", "object": {}}}).encode()


def test_unfinished_bodies_share_one_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """150 of them, of 7.9 MB each, took 1.3 GB."""
    monkeypatch.setattr(http, "ALL_BODIES", 1_000_000)

    async def answer(method: str, path: str, body: bytes) -> HttpReply:
        return HttpReply(200, str(len(body)).encode())

    async def post(port: int, body: bytes, size: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /validate HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % size + body)
        await writer.drain()
        return reader, writer

    async def work() -> None:
        listener = WebhookListener(answer, 500_000)
        port = await listener.start("127.0.0.1", 0, None)
        part = b"x" * (400_000 + SMALL)
        open_ = [await post(port, part, 490_000) for _ in range(2)]
        while listener.room.held < 800_000:
            await asyncio.sleep(0)
        reader, _ = await post(port, part, 490_000)
        assert b" 503 " in await reader.readline() and listener.room.held <= 1_000_000
        reader, _ = await post(port, b"x" * SMALL, SMALL)  # a small one is never shut out
        assert b" 200 " in await reader.readline()
        for _, writer in open_:
            writer.transport.abort()
        while listener.room.held:
            await asyncio.sleep(0)
        reader, _ = await post(port, b"x" * 490_000, 490_000)
        assert b" 200 " in await reader.readline()
        await listener.stop(0.0)

    asyncio.run(asyncio.wait_for(work(), 60))


def test_a_review_of_very_many_values_is_refused_before_it_is_parsed() -> None:
    many = b'{"kind": "AdmissionReview", "a": [' + b"[]," * (1 << 18) + b"[]]}"
    with pytest.raises(ConfigError, match="at most 524288"):
        read_review(many)


class Slow:
    """Workers whose one process is busy until it is let go."""

    number = 1

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.begun, self.go, self.untils = threading.Event(), threading.Event(), list[float]()

    def judge(self, case: AdmissionCase, until: float | None = None) -> list[ToldFinding]:
        assert until is not None
        self.untils.append(until)
        self.begun.set()
        assert self.go.wait(60)
        return []


def test_more_than_the_processes_can_take_is_told_so_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "QUEUE", 2)

    async def work() -> None:
        slow = Slow(60.0)
        hook = Webhook(slow)  # type: ignore[arg-type]
        begun = time.monotonic()
        waiting = [asyncio.create_task(hook.reply("POST", "/validate", REVIEW)) for _ in range(2)]
        await asyncio.to_thread(slow.begun.wait)
        assert (await hook.reply("POST", "/validate", REVIEW)).status == 503
        arrived = time.monotonic()
        slow.go.set()
        assert [reply.status for reply in await asyncio.gather(*waiting)] == [200, 200]
        assert all(begun <= until - 60.0 <= arrived for until in slow.untils)  # from when the body was there
        assert (await hook.reply("POST", "/validate", REVIEW)).status == 200 and hook.in_hand == 0

    asyncio.run(asyncio.wait_for(work(), 60))


def test_a_review_whose_turn_does_not_come_in_time_is_told_so() -> None:
    async def work() -> None:
        slow = Slow(0.01)
        hook = Webhook(slow)  # type: ignore[arg-type]
        first: Any = asyncio.create_task(hook.reply("POST", "/validate", REVIEW))
        await asyncio.to_thread(slow.begun.wait)
        assert (await hook.reply("POST", "/validate", REVIEW)).status == 503
        slow.go.set()
        assert (await first).status == 200 and len(slow.untils) == 1 and hook.in_hand == 0

    asyncio.run(asyncio.wait_for(work(), 60))
