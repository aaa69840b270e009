"""Nothing that the engine says ends its keeper: another engine is started, or the server ends with a code."""

from __future__ import annotations

import asyncio
import errno
import math
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import fake_engine
import pytest
from fake_engine import DEATH, GARBAGE, GONE, SENSELESS
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from augury.model.tokenizer import Tokenizer
from augury.observe.histogram import Histogram
from augury.observe.prometheus_requests import Finished, RequestProm
from augury.serve import engine_client, engine_start
from augury.serve.engine_client import EngineClient
from augury.serve.errors import ApiError
from augury.serve.observatory import Observatory
from augury.serve.service import Settings
from augury.tools.run import serve

NINES = int("9" * 309)


# --- figures ---------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None, derandomize=True)
@given(amount=st.one_of(st.floats(), st.integers(), st.just(NINES), st.none(), st.just("many")))
def test_a_histogram_takes_what_is_a_number_and_never_raises(amount: Any) -> None:
    registry = CollectorRegistry()
    histogram = Histogram("h", "text", ("name",), buckets=(1, 2), registry=registry).labels("x")
    histogram.observe(1.5)
    histogram.observe(amount)
    try:
        counted = not isinstance(amount, str) and math.isfinite(amount)
    except (TypeError, OverflowError):
        counted = False
    assert registry.get_sample_value("h_count", {"name": "x"}) == 1 + counted
    assert registry.get_sample_value("h_sum", {"name": "x"}) == pytest.approx(1.5 + (amount if counted else 0))


def test_an_answer_of_impossible_length_is_counted() -> None:
    registry = CollectorRegistry()
    figures = RequestProm(registry, "toy", 64)
    figures.finished(Finished("length", 1, 1, 0, 0, NINES, 0.1, 0.0, 0.0, 0.0))
    labels = {"model_name": "toy", "engine": "0"}
    assert registry.get_sample_value("vllm:request_success_total", {**labels, "finished_reason": "length"}) == 1
    assert registry.get_sample_value("vllm:request_num_preemptions_count", labels) == 1  # what comes after it, too


# --- the keeper ------------------------------------------------------------------------------------------------------


class Kept:
    """A client with a fake engine, and what it says when it gives up."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.observatory = Observatory()
        self.client = EngineClient("toy", {}, self.observatory, self.said.append)

    async def answer(self, *tokens: int) -> str:
        batch = await self.client.submit([list(tokens)], {"max_tokens": 1}, 1, False)
        return "".join([update["text"] async for _, update in self.client.updates(batch)])

    async def failure(self, *tokens: int) -> str | None:
        """The code of the error that a prompt ends with."""
        with pytest.raises(ApiError) as caught:
            await self.answer(*tokens)
        return caught.value.code

    async def until(self, wanted: Callable[[], Any]) -> None:
        async with asyncio.timeout(20):
            while not wanted():
                await asyncio.sleep(0.01)

    def faults(self, where: str) -> float:
        labels = {"model_name": "toy", "engine": "0", "where": where}
        return self.observatory.registry.get_sample_value("augury:server_faults_total", labels) or 0.0


def keeping(monkeypatch: pytest.MonkeyPatch, play: Callable[[Kept], Coroutine[Any, Any, None]]) -> None:
    """Run a scene with a client whose engine is ready."""
    monkeypatch.setattr(engine_start, "ENGINE", (fake_engine.__file__,))
    monkeypatch.setattr(engine_client, "FIRST_WAIT", 0.01)

    async def scene() -> None:
        kept = Kept()
        await kept.client.start()
        kept.observatory.open("toy", kept.client.facts)
        try:
            assert await kept.answer(1) == "!"
            await play(kept)
        finally:
            await kept.client.stop()

    asyncio.run(scene())


@pytest.mark.parametrize("poison", [SENSELESS, GARBAGE, DEATH])
def test_whatever_the_engine_says_another_is_started(
    poison: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def play(kept: Kept) -> None:
        first = kept.client.pid
        assert await kept.failure(poison) == "engine_died"
        await kept.until(lambda: kept.client.healthy)
        assert kept.client.pid != first and await kept.answer(1) == "!" and not kept.said
        assert kept.faults("engine") == (poison != DEATH)

    keeping(monkeypatch, play)
    assert ("Traceback" in caplog.text) == (poison != DEATH)


@pytest.mark.parametrize("which", ["taken", "heard", "updated", "aborted"])
def test_figures_that_fail_cost_no_answer(
    which: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(self: Observatory, *_: Any) -> None:
        raise OverflowError("int too large to convert to float")

    async def play(kept: Kept) -> None:
        pid = kept.client.pid
        monkeypatch.setattr(Observatory, which, broken)
        for _ in range(4):
            assert await kept.answer(1) == "!"
        assert kept.client.pid == pid and kept.client.healthy
        assert await kept.failure(DEATH) == "engine_died"
        await kept.until(lambda: kept.client.healthy)
        assert kept.faults("figures") == (1 if which == "aborted" else 4)

    keeping(monkeypatch, play)
    assert caplog.text.count("Traceback") == 1 and "int too large" in caplog.text  # once, however often it happens


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_an_engine_that_cannot_be_started_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def play(kept: Kept) -> None:
        spawn, failures, before = subprocess.Popen, iter(range(5)), descriptors()

        def scarce(*words: Any, **options: Any) -> Any:
            if next(failures, None) is not None:
                raise OSError(errno.EMFILE, "Too many open files")
            return spawn(*words, **options)

        monkeypatch.setattr(subprocess, "Popen", scarce)
        assert await kept.failure(DEATH) == "engine_died"
        await kept.until(lambda: kept.client.healthy)
        assert await kept.answer(1) == "!" and not kept.said and kept.faults("start") == 5
        assert descriptors() <= before

    keeping(monkeypatch, play)


def test_a_server_whose_engine_never_starts_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def play(kept: Kept) -> None:
        def scarce(*words: Any, **options: Any) -> Any:
            raise OSError(errno.EMFILE, "Too many open files")

        monkeypatch.setattr(subprocess, "Popen", scarce)
        assert await kept.failure(DEATH) == "engine_died"
        await kept.until(lambda: kept.said)
        assert len(kept.said) == 1 and "Too many open files" in kept.said[0]
        assert await kept.failure(1) == "engine_unavailable"

    keeping(monkeypatch, play)


def test_an_engine_without_its_swapped_drafter_starts_with_that_of_the_command_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def play(kept: Kept) -> None:
        given = kept.client.start_message
        kept.client.facts["speculative_config"] = {"model": "first"}
        for drafter in ("other", GONE):
            await kept.client.swap(drafter)
        assert kept.client.start_message["arguments"]["speculative_config"]["model"] == GONE
        assert await kept.failure(DEATH) == "engine_died"
        await kept.until(lambda: kept.client.healthy or kept.said)
        assert not kept.said and kept.client.start_message == given and await kept.answer(1) == "!"

    keeping(monkeypatch, play)
    assert caplog.text.count("with the drafter of the command line") == 1


def test_an_engine_that_was_started_ahead_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_start, "ENGINE", (fake_engine.__file__,))
    engine_start.start_ahead()
    [ahead] = engine_start._ahead

    async def play(kept: Kept) -> None:
        assert kept.client.pid == ahead.pid and await kept.answer(1) == "!"
        assert await kept.failure(DEATH) == "engine_died"  # and the next is another one
        await kept.until(lambda: kept.client.healthy)
        assert kept.client.pid != ahead.pid and await kept.answer(1) == "!"

    keeping(monkeypatch, play)
    engine_start.start_ahead()
    [unused] = engine_start._ahead
    engine_start.end_ahead()
    assert not engine_start._ahead and asyncio.run(unused.wait()) == -signal.SIGKILL


@pytest.mark.parametrize("where", ["_mourn", "_revive"])
def test_a_keeper_that_ends_is_told(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for an answer that cannot come, and the server is told to end."""

    async def play(kept: Kept) -> None:
        def broken(*_: Any) -> None:
            raise RuntimeError("nobody thought of this")

        monkeypatch.setattr(kept.client, where, broken)
        assert await kept.failure(DEATH) == "engine_died"
        await kept.until(lambda: kept.said)
        assert len(kept.said) == 1 and "nobody thought of this" in kept.said[0] and not kept.client.ready

    keeping(monkeypatch, play)


@pytest.mark.parametrize("loading", [0.0, 0.6])
def test_a_keeper_that_ends_ends_the_server_with_a_code(
    loading: float, toy_model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whether clients are served already, or the tokenizer is still being read."""

    def broken(*_: Any) -> None:
        raise RuntimeError("nobody thought of this")

    def slowly(directory: Path) -> Tokenizer:
        time.sleep(loading)
        return Tokenizer(directory)

    monkeypatch.setattr(engine_start, "ENGINE", (fake_engine.__file__,))
    monkeypatch.setattr(EngineClient, "_mourn", broken)
    monkeypatch.setattr("augury.serve.opening.load_tokenizer", slowly)
    monkeypatch.setattr("augury.tools.run.serve.logging.basicConfig", lambda **_: None)
    late = threading.Timer(30, os.kill, [os.getpid(), signal.SIGTERM])  # or a server that goes on would do so for good
    late.start()
    try:
        assert serve.run(Settings(str(toy_model), {"dies_after": 0.3}, ["toy"], port=0)) == 1
    finally:
        late.cancel()
    assert "nobody thought of this" in capsys.readouterr().err
