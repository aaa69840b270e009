"""The door without Ray, before replicas that are plain functions: retries, errors in streams, calls to all."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from fleet_functions import Here, Messages, ask, client, dead, dies_at_the_start, dies_late, run, stream, whole

from augury.scale.ingress import Ingress
from augury.serve.limits import Limits


def test_a_stream_passes_and_sessions_stay() -> None:
    async def work() -> None:
        fleet = Here(a=stream, b=stream, c=stream)
        async with client(fleet) as http:
            for n in range(12):
                for _ in range(3):
                    answer = await http.post("/v1/chat/completions", json=ask(f"s{n}"))
                    assert (answer.status_code, answer.text) == (200, "data: 1\n\ndata: [DONE]\n\n")
        replicas = [name for name, _ in fleet.asked]
        assert all(len(set(replicas[at : at + 3])) == 1 for at in range(0, 36, 3)) and len(set(replicas)) == 3

    run(work())


@pytest.mark.parametrize("lost", [dead, dies_at_the_start])
def test_a_request_whose_replica_said_nothing_is_answered_by_another(lost: Any) -> None:
    async def work() -> None:
        fleet = Here(a=lost, b=stream)
        async with client(fleet) as http:
            answers = [await http.post("/v1/chat/completions", json=ask(f"s{n}")) for n in range(12)]
        assert {answer.text for answer in answers} == {"data: 1\n\ndata: [DONE]\n\n"}
        assert "a" in {name for name, _ in fleet.asked}

    run(work())


def test_no_request_is_sent_a_third_time() -> None:
    async def work() -> None:
        fleet = Here(a=dead, b=dead, c=dead)
        async with client(fleet) as http:
            answer = await http.post("/v1/chat/completions", json=ask("s"))
        assert (answer.status_code, answer.json()["error"]["code"], len(fleet.asked)) == (503, "replica_died", 2)

    run(work())


@pytest.mark.parametrize(
    ("path", "line", "where"), [("/v1/chat/completions", "", "error"), ("/v1/messages", "event: error\n", "error")]
)
def test_a_stream_that_lost_its_replica_ends_with_an_error_event(path: str, line: str, where: str) -> None:
    async def work() -> None:
        async with client(Here(a=dies_late)) as http:
            answer = await http.post(path, json=ask("s"))
        first, last = answer.text.split("\n\n")[:2]
        assert first == "data: 1" and last.startswith(f"{line}data: ")
        assert "has died" in json.loads(last.removeprefix(line).removeprefix("data: "))[where]["message"]

    run(work())


def test_nobody_is_there() -> None:
    async def work() -> None:
        async with client(Here()) as http:
            answer = await http.post("/v1/completions", json={"prompt": "x"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_replica")
        assert "retry-after" in answer.headers

    run(work())


def test_kept_responses_are_asked_of_their_keeper() -> None:
    async def work() -> None:
        fleet = Here(a=whole, b=whole, c=whole)
        async with client(fleet) as http:
            await http.post("/v1/responses", json={"input": "first"})
            for _ in range(4):
                await http.get("/v1/responses/resp_1-a")
                await http.post("/v1/responses", json={"input": "x", "previous_response_id": "resp_1-a"})
        assert len({name for name, _ in fleet.asked}) == 1

    run(work())


def test_what_is_for_all_is_done_by_all_or_refused() -> None:
    async def work() -> None:
        fleet = Here(a=whole, b=whole)
        header = [(b"content-type", b"application/json")]
        fleet.calls["whole"] = {"a": (200, header, b'{"ok":1}'), "b": (404, header, b'{"error":2}')}
        fleet.calls["load"] = {"a": 2, "b": 3}
        fleet.calls["metrics"] = {"a": "x 1.0\n", "b": "x 2.0\n"}
        async with client(fleet) as http:
            answer = await http.post("/v1/load_lora_adapter", json={"lora_name": "x"})
            assert (answer.status_code, answer.json()) == (404, {"error": 2})
            assert (await http.get("/load")).json() == {"server_load": 5}
            assert 'x{replica="a"} 1.0\nx{replica="b"} 2.0\n' in (await http.get("/metrics")).text
        assert not fleet.asked

    run(work())


def test_bodies_have_their_limit() -> None:
    async def work() -> None:
        fleet = Here(a=stream)
        async with client(fleet, request_bytes=100) as http:
            answer = await http.post("/v1/completions", json={"prompt": "x" * 200})
        assert answer.status_code == 413 and not fleet.asked

    run(work())


def test_strangers_leave_no_trace() -> None:
    async def work() -> None:
        fleet = Here(a=stream, b=stream)
        door = Ingress(fleet, Limits(api_keys=["k"]))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=door), base_url="http://door") as http:
            await http.post("/v1/chat/completions", json=ask("s"))
            assert not door.router._sessions
            await http.post("/v1/chat/completions", json=ask("s"), headers={"Authorization": "Bearer k"})
            assert door.router._sessions

    run(work())


def test_a_client_that_leaves_ends_its_request() -> None:
    async def work() -> None:
        begun = asyncio.Event()

        async def forever(scope: dict[str, Any], body: bytes) -> AsyncIterator[Messages]:
            begun.set()
            await asyncio.Event().wait()
            yield []

        fleet = Here(a=forever)
        door = Ingress(fleet, Limits())
        sent = [{"type": "http.request", "body": b'{"prompt": "x"}', "more_body": False}]

        async def receive() -> Any:
            if sent:
                return sent.pop()
            await begun.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            raise AssertionError(message)

        scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": []}
        await door(scope, receive, send)
        assert fleet.left == ["a"] and door.at_work["a"] == 0

    run(work())


def test_the_page_comes_from_one_replica() -> None:
    async def work() -> None:
        fleet = Here(a=whole, b=whole, c=whole)
        async with client(fleet) as http:
            for path in ("/", "/augury/live", "/v1/models", "/version") * 3:
                await http.get(path)
        assert len({name for name, _ in fleet.asked}) == 1

    run(work())
