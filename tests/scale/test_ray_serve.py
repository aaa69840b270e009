"""Two replicas on a real Ray: texts, streams, metrics, a replica that is killed, one that is drained, the end."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("ray", reason="needs Ray: pip install 'augury[ray]'")

import fleets
from fleets import Answer, Fleet

if TYPE_CHECKING:
    from augury import LLM

CLIENTS = 64
LONG = 160  # tokens of an answer that is under way when its replica dies


def body(n: int, tokens: int = 24) -> dict[str, Any]:
    return {"prompt": f"session {n}: once upon a time", "max_tokens": tokens, "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def running(toy_model: Path) -> Iterator[Fleet]:
    with fleets.fleet(toy_model, "--replica-cpus", "1", "--shutdown-timeout", "120") as one:
        while len(one.metric("vllm:num_requests_running")) < 2:  # Ray tells the door of replicas one by one
            time.sleep(0.1)
        yield one


def wanted(llm: LLM, count: int, tokens: int) -> list[str]:
    """What one engine says, alone."""
    from augury import SamplingParams

    params = SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True)
    outputs = llm.generate([str(body(n)["prompt"]) for n in range(count)], params)
    return [output.outputs[0].text for output in outputs]


def test_replicas_answer_as_one_engine_does_and_sessions_stay(running: Fleet, llm: LLM) -> None:
    texts = wanted(llm, 12, 24)
    for _ in range(2):
        answers = asyncio.run(fleets.together(running.url, [body(n) for n in range(12)]))
        assert [(answer.text, answer.done, answer.error) for answer in answers] == [
            (text, True, None) for text in texts
        ]
    routed = running.metric("augury:router_requests_total")
    assert len(routed) == 2 and sum(routed.values()) == 24
    assert sum(running.metric("augury:router_requests_total", why="held").values()) == 12


def test_metrics_name_their_replica(running: Fleet) -> None:
    generated = running.metric("vllm:generation_tokens_total")
    assert len(generated) == 2 and sum(generated.values()) >= 24 * 24
    assert running.http.get("/load").json() == {"server_load": 0}
    for name, repeated in (("mine-1", True), ("x" * 3000, False)):  # which also says that the proxy has our doorstep
        models = running.http.get("/v1/models", headers={"X-Request-ID": name})
        assert models.status_code == 200 and (models.headers["x-request-id"] == name) == repeated
    wrong = running.http.post("/v1/completions", json={"prompt": "x", "max_tokenss": 3})
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "max_tokenss")


async def kill_one(running: Fleet, victim: int) -> list[Answer]:
    """Stream to all clients; when each has said something, end a replica."""
    bodies = [body(n, LONG) for n in range(CLIENTS)]
    async with fleets.clients(running.url, CLIENTS) as http:
        tasks = [asyncio.create_task(fleets.stream(http, one)) for one in bodies]
        while await asyncio.to_thread(at_work, running) < CLIENTS // 2:
            await asyncio.sleep(0.05)
        os.kill(victim, signal.SIGKILL)
        late = [asyncio.create_task(fleets.stream(http, body(1000 + n))) for n in range(4)]
        return [*await asyncio.gather(*tasks), *await asyncio.gather(*late)]


def at_work(running: Fleet) -> float:
    return sum(running.metric("vllm:num_requests_running").values())


def test_a_killed_replica_takes_only_its_own_streams_with_it(running: Fleet, llm: LLM) -> None:
    texts, before = wanted(llm, CLIENTS, LONG), running.engines()
    assert len(before) == 2
    answers = asyncio.run(kill_one(running, before[0]))
    streams, late = answers[:CLIENTS], answers[CLIENTS:]
    lost = [answer for answer in streams if answer.error]
    assert 0 < len(lost) < CLIENTS and {answer.error for answer in lost} == {"replica_died"}
    assert all(text.startswith(answer.text) for answer, text in zip(streams, texts, strict=True))
    whole = [(answer, text) for answer, text in zip(streams, texts, strict=True) if not answer.error]
    assert all(answer.done and answer.text == text for answer, text in whole)
    assert all(answer.done for answer in late)  # new requests go on


def test_ray_starts_another_and_it_answers(running: Fleet) -> None:
    running.wait_for(lambda: len(running.metric("vllm:generation_tokens_total")) == 2)
    answers = asyncio.run(fleets.together(running.url, [body(2000 + n) for n in range(16)]))
    assert all(answer.done for answer in answers)


def test_fewer_replicas_lose_nothing(running: Fleet, llm: LLM) -> None:
    async def work() -> list[Answer]:
        async with fleets.clients(running.url, 24) as http:
            tasks = [asyncio.create_task(fleets.stream(http, body(n, LONG))) for n in range(16)]
            while await asyncio.to_thread(at_work, running) < 16:
                await asyncio.sleep(0.05)
            await asyncio.to_thread(running.rescale, 1)
            late = [asyncio.create_task(fleets.stream(http, body(n, LONG))) for n in range(8)]
            return [*await asyncio.gather(*tasks), *await asyncio.gather(*late)]

    texts = wanted(llm, 16, LONG)
    answers = asyncio.run(work())
    assert [(answer.text, answer.error) for answer in answers] == [(text, None) for text in (*texts, *texts[:8])]
    running.wait_for(lambda: len(running.engines()) == 1)


def test_told_to_end_it_lets_running_requests_finish(running: Fleet, llm: LLM) -> None:
    async def work() -> list[Answer]:
        async with fleets.clients(running.url, 8) as http:
            tasks = [asyncio.create_task(fleets.stream(http, body(n, LONG))) for n in range(8)]
            while await asyncio.to_thread(at_work, running) < 8:
                await asyncio.sleep(0.05)
            running.process.send_signal(signal.SIGTERM)
            return list(await asyncio.gather(*tasks))

    answers = asyncio.run(work())
    assert [(answer.text, answer.error) for answer in answers] == [(text, None) for text in wanted(llm, 8, LONG)]
    assert running.process.wait(120) == 0
