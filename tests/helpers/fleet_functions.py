"""A fleet whose replicas are plain functions, and a client of its door."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx

from augury.scale.fleet import ReplicaLost
from augury.scale.ingress import Ingress
from augury.serve.limits import Limits

Messages = list[dict[str, Any]]
EVENTS = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]}
PLAIN = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]}


def piece(text: str, more: bool = True) -> dict[str, Any]:
    return {"type": "http.response.body", "body": text.encode(), "more_body": more}


class Here:
    """A fleet of functions; a replica that raises is lost."""

    def __init__(self, **replicas: Callable[[dict[str, Any], bytes], AsyncIterator[Messages]]) -> None:
        self.replicas = dict(replicas)
        self.asked: list[tuple[str, str]] = []
        self.left: list[str] = []
        self.calls: dict[str, dict[str, Any]] = {}

    def names(self) -> list[str]:
        return sorted(self.replicas)

    async def answer(self, name: str, scope: dict[str, Any], body: bytes) -> AsyncIterator[Messages]:
        self.asked.append((name, scope["path"]))
        inner = self.replicas[name](scope, body)
        try:
            async for messages in inner:
                yield messages
        finally:
            self.left.append(name)

    async def everywhere(self, method: str, *given: Any) -> dict[str, Any]:
        return self.calls[method]


async def stream(scope: dict[str, Any], body: bytes) -> AsyncIterator[Messages]:
    yield [EVENTS, piece("data: 1\n\n")]
    yield [piece("data: [DONE]\n\n", False)]


async def whole(scope: dict[str, Any], body: bytes) -> AsyncIterator[Messages]:
    yield [PLAIN, piece('{"id":"resp_1-a","ok":1}', False)]


async def dead(scope: dict[str, Any], body: bytes) -> AsyncIterator[Messages]:
    raise ReplicaLost("gone")
    yield []


async def dies_late(scope: dict[str, Any], body: bytes) -> AsyncIterator[Messages]:
    yield [EVENTS, piece("data: 1\n\n")]
    raise ReplicaLost("gone")


async def dies_at_the_start(scope: dict[str, Any], body: bytes) -> AsyncIterator[Messages]:
    yield [EVENTS]
    raise ReplicaLost("gone")


def client(fleet: Here, **limits: Any) -> httpx.AsyncClient:
    door = Ingress(fleet, Limits(**limits))
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=door), base_url="http://door")


def ask(session: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": session}], "stream": True}


def run(work: Any) -> Any:
    return asyncio.run(asyncio.wait_for(work, 60))
