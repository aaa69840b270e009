"""A server of two ranks: a rank that is killed costs the requests in flight, and the next one is served."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from served import Served, served
from slowness import times_slower

SOON = 5.0 * times_slower()  # seconds in which the loss of a rank must be told
ASKED = {"model": "toy", "prompt": "abcabc", "max_tokens": 12, "temperature": 0.8, "seed": 3, "ignore_eos": True}


@pytest.fixture(scope="module")
def server(toy_model: Path) -> Iterator[Served]:
    flags = ("--served-model-name", "toy", "-tp", "2", "--max-model-len", "256", "--max-num-seqs", "2")
    with served(toy_model, *flags, OMP_NUM_THREADS="1") as running:
        yield running


def follower(server: Served) -> int:
    engine = server.engine_pid()
    (child,) = Path(f"/proc/{engine}/task/{engine}/children").read_text().split()
    return int(child)


def answer(server: Served) -> str:
    return str(server.http.post("/v1/completions", json=ASKED).raise_for_status().json()["choices"][0]["text"])


def until_told(server: Served, pid: int) -> None:
    """Wait until the log tells of the loss."""
    begun = time.monotonic()
    while f"rank 1 (process {pid}) was ended by signal 9" not in server.log:
        assert time.monotonic() - begun < SOON, server.log
        time.sleep(0.01)


def until_back(server: Served, engine: int) -> None:
    """Wait until another engine runs."""
    limit = time.monotonic() + 120
    while engine in server.children():
        assert time.monotonic() < limit, server.log
        time.sleep(0.01)
    server.wait()


def test_a_killed_rank_in_the_midst_of_an_answer_and_at_rest(server: Served) -> None:
    first = answer(server)
    engine, lost = server.engine_pid(), follower(server)
    with server.http.stream("POST", "/v1/completions", json={**ASKED, "max_tokens": 200, "stream": True}) as response:
        lines = response.iter_lines()
        next(lines)
        os.kill(lost, signal.SIGKILL)
        last = [line for line in lines if line.startswith("data: {")][-1]
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "engine_died"
    until_told(server, lost)
    until_back(server, engine)
    assert answer(server) == first
    engine, lost = server.engine_pid(), follower(server)
    os.kill(lost, signal.SIGKILL)  # while nobody asks for anything
    until_told(server, lost)
    until_back(server, engine)
    assert answer(server) == first
