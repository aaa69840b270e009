"""What the door of a fleet does for strangers and with large bodies: nothing before a key, nothing twice."""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from fleet_functions import Here, Messages, client, dead, run, stream, whole

from augury.scale import ingress
from augury.scale.ingress import Ingress
from augury.scale.keepers import Keepers
from augury.serve import reading
from augury.serve.limits import Limits

KEY = {"Authorization": "Bearer k"}


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/chat/completions", "/tokenize", "/augury/drafter"])
def test_nothing_of_a_strangers_body_is_read(path: str) -> None:
    """Four bodies of 16 MB without a key stopped everyone for 42 seconds."""

    async def work() -> None:
        fleet, sent = Here(a=stream), []

        async def receive() -> Any:
            raise AssertionError("it was read")

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "POST", "path": path, "headers": []}
        await Ingress(fleet, Limits(api_keys=["k"]))(scope, receive, send)
        assert sent[0]["status"] == 401 and not fleet.asked

    run(work())


@pytest.mark.parametrize("path", ["/metrics", "/load", "/augury/live"])
def test_a_strangers_page_reads_no_figures(path: str) -> None:
    async def work() -> None:
        fleet = Here(a=whole)
        fleet.calls |= {"load": {"a": 1}, "metrics": {"a": "x 1.0\n"}}
        for keys in (["k"], []):
            async with client(fleet, loopback=True, api_keys=keys) as http:
                assert (await http.get(path, headers={"Host": "evil.example"})).status_code == 403
                assert (await http.get(path, headers={"Origin": "http://evil.example"})).status_code == 403
                assert (await http.get(path, headers={"Host": "127.0.0.1"})).status_code == 200

    run(work())


def test_a_body_is_parsed_once_beside_the_event_loop_and_within_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[str] = []
    loads = json.loads

    def parse(text: Any) -> Any:
        threads.append(threading.current_thread().name)
        return loads(text)

    async def work() -> None:
        fleet = Here(a=whole)
        async with client(fleet, api_keys=["k"]) as http:
            await http.post("/v1/responses", json={"input": "x"}, headers=KEY)  # now there is one to be looked for
            long = {"previous_response_id": "resp_1-a", "input": "x" * reading.LONG}
            threads.clear()
            monkeypatch.setattr(reading.json, "loads", parse)
            assert (await http.post("/v1/responses", json=long, headers=KEY)).status_code == 200
            assert [name.rstrip("_0123456789") for name in threads] == ["read"]
            many = b'{"previous_response_id":"x","input":[' + b"[]," * reading.MOST_MARKS + b"[]]}"
            threads.clear()
            assert (await http.post("/v1/responses", content=many, headers=KEY)).status_code == 413
        assert not threads and len(fleet.asked) == 2

    run(work())


def test_bodies_are_counted_until_they_are_passed_on_and_kept_for_a_second_try_while_there_is_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work() -> None:
        body, seen = {"prompt": "x" * 100_000}, []

        async def looks(scope: dict[str, Any], body: bytes) -> AsyncIterator[Messages]:
            seen.append((door._bodies.held, door._kept >= 100_000))
            async for messages in stream(scope, body):
                yield messages
                seen.append((door._bodies.held, door._kept > 0))

        async def counted(*given: Any) -> Any:
            seen.append((door._bodies.held > 0, door._kept > 0))
            return await read(*given)

        read = ingress.read_asked
        monkeypatch.setattr(ingress, "read_asked", counted)
        fleet = Here(a=looks)
        door = Ingress(fleet, Limits())
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=door), base_url="http://door") as http:
            assert (await http.post("/v1/completions", json=body)).status_code == 200
            assert seen == [(True, False), (0, True), (0, False), (0, False)] and door._kept == 0
            fleet.replicas = {"a": dead, "b": dead}
            monkeypatch.setattr(ingress, "AGAIN", 0)
            answer = await http.post("/v1/completions", json=body)
        assert answer.status_code == 503 and len(fleet.asked) == 2 and door._kept == 0

    run(work())


def test_what_undoes_a_swap_is_for_all() -> None:
    async def work() -> None:
        fleet = Here(a=whole, b=whole)
        fleet.calls["whole"] = {"a": (200, [], b"{}"), "b": (200, [], b"{}")}
        async with client(fleet) as http:
            assert (await http.post("/augury/drafter/undo")).status_code == 200
        assert not fleet.asked

    run(work())


def test_one_key_does_not_push_out_anothers_responses() -> None:
    keepers = Keepers(2, most=8)
    keepers.note("0", "resp_mine", "a")
    for n in range(100):
        keepers.note("1", f"resp_{n}", "b")
    assert keepers.of("0", "/v1/responses/resp_mine", None) == "a"
    assert [keepers.of("1", "/v1/responses", f"resp_{n}") for n in (95, 96)] == [None, "b"]
    assert keepers.of("1", "/v1/responses/resp_mine/cancel", None) is None
