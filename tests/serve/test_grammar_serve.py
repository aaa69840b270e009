"""Hostile grammars against a server: the guilty get a 400 in words, streams go on, and the engine is not restarted."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from grammar_cases import deep_schema, gbnf_chain, lark_chain, late_explosion, long_gbnf, reference_chain
from served import Served, served

from augury.engine.grammar_jobs import Busy
from augury.serve.backlog import Backlog
from augury.serve.engine_client import EngineClient
from augury.serve.engine_process import EngineProcess
from augury.serve.errors import ApiError
from augury.serve.jobs import Batch

INNOCENT = {"json": {"type": "object", "properties": {"a": {"type": "null"}}, "additionalProperties": False}}


@pytest.fixture(scope="module")
def server(toy_model: Path) -> Iterator[Served]:
    with served(toy_model, "--api-key", "one", "--api-key", "two") as running:
        yield running


def ask(server: Served, wanted: dict[str, Any], key: str = "one", **body: Any) -> httpx.Response:
    return httpx.post(
        f"{server.url}/v1/completions",
        json={"prompt": "x", "max_tokens": 4, "structured_outputs": wanted, **body},
        headers={"Authorization": f"Bearer {key}"},
        timeout=120,
    )


def refused(answer: httpx.Response, kind: str) -> bool:
    """Whether an answer is a 400 in words; anything but that and a 200 is wrong."""
    assert answer.status_code in (200, 400), answer.text
    if answer.status_code == 200:
        return False
    error = answer.json()["error"]
    assert error["param"] == f"structured_outputs.{kind}" and "cannot be used" in error["message"], error
    return True


def counted(server: Served, outcome: str, least: int) -> bool:
    """Whether a counter comes to this; the engine tells its counters with its next message."""
    limit = time.monotonic() + 30
    while time.monotonic() < limit:
        if server.metrics()[f'augury:grammar_compilations_total{{"outcome": "{outcome}"}}'] >= least:
            return True
        time.sleep(0.1)
    return False


def test_hostile_grammars_disturb_nobody(server: Served) -> None:
    assert ask(server, INNOCENT).status_code == 200
    engine, heard = server.engine_pid(), []
    done = threading.Event()

    def stream() -> None:
        body = {"prompt": "s", "max_tokens": 40, "stream": True, "ignore_eos": True, "temperature": 0}
        headers = {"Authorization": "Bearer two"}
        while not done.is_set():
            with httpx.stream("POST", f"{server.url}/v1/completions", json=body, headers=headers, timeout=120) as got:
                heard.append("".join(line for line in got.iter_lines() if "text" in line).count('"text"'))

    listener = threading.Thread(target=stream)
    listener.start()
    for _ in range(4):  # three deaths would end the server
        for kind, source in (
            ("json", reference_chain(1000)),
            ("json", reference_chain(1500)),
            ("grammar", lark_chain(4000)),
            ("json", deep_schema(400)),
            ("grammar", gbnf_chain(900)),
        ):
            refused(ask(server, {kind: source}), kind)
    done.set()
    listener.join()
    assert heard and len(set(heard)) == 1, heard  # every stream was whole
    assert server.engine_pid() == engine and server.http.get("/health").status_code == 200


def test_large_grammars_hold_up_no_small_schema(server: Served) -> None:
    engine = server.engine_pid()
    with ThreadPoolExecutor(3) as pool:
        large = [pool.submit(ask, server, {"grammar": long_gbnf(478_000 - i)}, "one") for i in range(2)]
        fresh = {"json": {"type": "object", "properties": {"new": {"type": "null"}}, "required": ["new"]}}
        innocent = pool.submit(ask, server, fresh, "two").result()
        assert innocent.status_code == 200, innocent.text
        assert [refused(one.result(), "grammar") for one in large] == [True, True]
    assert server.engine_pid() == engine
    assert counted(server, "time", 2) and counted(server, "compiled", 2)


def test_a_parser_that_hangs_ends_its_request(server: Served) -> None:
    """After a hundred a's and a b the library would compute for minutes; the neighbour does not notice."""
    engine = server.engine_pid()
    lure = {"logit_bias": {"64": 100}, "frequency_penalty": 1.0, "temperature": 0, "max_tokens": 400}
    with ThreadPoolExecutor(1) as pool:
        guilty = pool.submit(ask, server, {"grammar": late_explosion(300)}, **lure)
        assert ask(server, INNOCENT, "two").status_code == 200
        answer = guilty.result().json()["choices"][0]
    assert answer["finish_reason"] == "error" and "its masks take more than 5 ms" in answer["stop_reason"], answer
    assert server.engine_pid() == engine and ask(server, INNOCENT, "two").status_code == 200
    assert counted(server, "stopped", 1)


def test_other_apis_do_not_call_such_an_answer_finished(server: Served) -> None:
    lure = {"logit_bias": {"64": 100}, "frequency_penalty": 1.0, "temperature": 0}
    body = {"structured_outputs": {"grammar": late_explosion(300)}, **lure}
    key = {"Authorization": "Bearer one"}
    asked = {**body, "input": "x", "max_output_tokens": 400}
    response = server.http.post("/v1/responses", json=asked, headers=key).json()
    assert response["status"] == "failed" and "its masks take more than 5 ms" in response["error"]["message"], response
    assert response["output"][-1]["status"] == "incomplete"
    asked = {**body, "messages": [{"role": "user", "content": "x"}], "max_tokens": 400, "stream": True}
    streamed = server.http.post("/v1/messages", json=asked, headers=key)
    assert "event: error" in streamed.text and "event: message_stop" not in streamed.text, streamed.text[-500:]


def test_the_field_that_asked_is_named(server: Served) -> None:
    body = {"prompt": "x", "guided_regex": "(("}
    got = httpx.post(f"{server.url}/v1/completions", json=body, headers={"Authorization": "Bearer one"})
    assert got.status_code == 400 and got.json()["error"]["param"] == "guided_regex"
    big = ask(server, {"regex": "a" * 1_100_000})
    assert big.status_code == 400 and "the limit is 1048576" in big.json()["error"]["message"]


def test_an_innocent_that_finds_no_room_gets_503_and_when_to_come_back() -> None:
    """From the engine's process over the wire to the response."""

    class Wire:
        def __init__(self) -> None:
            self.sent: list[dict[str, Any]] = []

        def send(self, message: dict[str, Any]) -> None:
            self.sent.append(message)

    process = EngineProcess.__new__(EngineProcess)
    process.channel = wire = Wire()  # type: ignore[assignment]
    process._refuse(7, Busy("too many grammars wait; try again in a moment."))
    assert json.loads(json.dumps(wire.sent)) == [{"type": "busy", "id": 7, "message": wire.sent[0]["message"]}]

    async def hear() -> ApiError:
        client = EngineClient("m", {}, None, lambda why: None)  # type: ignore[arg-type]
        job = Batch(1, Backlog()).add(7, 3, None)
        client._jobs[7] = job
        client._dispatch(wire.sent[0])
        with pytest.raises(ApiError) as caught:
            await job.taken
        return caught.value

    error = asyncio.run(hear())
    assert error.status == 503 and error.code == "grammars_busy" and "try again" in error.message
    assert int(error.response().headers["Retry-After"]) > 0
