"""What a machine may do to a server: a full disk, files it may not read, an engine that stops or dies and dies."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import forked
import httpx
import pytest
from served import RUN, Served, free_port, served
from tiny_gguf import write_gguf

from augury.serve import watch
from augury.serve.watch import LOST, SILENCE, STUCK, Watch, processor_seconds

MODEST = ("setpriv", "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-all")  # root that heeds modes


def run(*words: str, prefix: Sequence[str] = (), **extra: str) -> subprocess.CompletedProcess[str]:
    command = [*prefix, sys.executable, "-c", RUN, "serve", *words, "--port", "0", "--device", "cpu"]
    env = {**os.environ, **extra}
    if prefix:
        return subprocess.run(command, capture_output=True, text=True, timeout=120, env=env)
    return forked.run(command, env)


def one_line(done: subprocess.CompletedProcess[str], *words: str) -> None:
    assert done.returncode in (1, 2) and done.stderr.count("\n") == 1 and done.stderr.startswith("error: "), done
    assert all(word in done.stderr for word in words), done.stderr


class Hung(NamedTuple):
    """A server whose engine was stopped, and what it says in the end to a request that came before it could know."""

    server: Served
    engine: int
    answer: Future[tuple[httpx.Response, float]]


@pytest.fixture(scope="module")
def hung(toy_model: Path) -> Iterator[Hung]:
    with served(toy_model) as server, ThreadPoolExecutor(1) as aside:

        def ask() -> tuple[httpx.Response, float]:
            begun = time.monotonic()
            asked = {"prompt": "x", "max_tokens": 2}
            answer = httpx.post(f"{server.url}/v1/completions", json=asked, timeout=STUCK + 30)
            return answer, time.monotonic() - begun

        engine = server.engine_pid()
        os.kill(engine, signal.SIGSTOP)
        yield Hung(server, engine, aside.submit(ask))


@pytest.mark.slow
def test_a_hanging_engine_is_not_known_at_once(hung: Hung) -> None:
    """First of all, so that its minute passes beside the other tests; the last one sees what came of it."""
    assert hung.server.http.get("/health").status_code == 200 and not hung.answer.done()


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system with room for next to nothing."""
    place = tmp_path / "full"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(place)], capture_output=True)
    if mounted.returncode:
        pytest.skip("a small file system cannot be mounted here: it takes root")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


def test_a_full_cache_directory_is_one_line(full_disk: Path, tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf")
    one_line(run(str(tmp_path / "tiny.gguf"), AUGURY_CACHE=str(full_disk)), "No space left on device")
    assert not list(full_disk.rglob("*.safetensors"))  # nothing half made stays


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
def test_a_log_on_a_full_disk_stops_nobody(toy_model: Path) -> None:
    port = free_port()
    words = ["serve", str(toy_model), "--port", str(port), "--device", "cpu", "--log-stats-interval", "0.2"]
    with open("/dev/full", "wb") as full:
        process = forked.popen([sys.executable, "-c", RUN, *words], dict(os.environ), stdout=full, stderr=full)
    server = Served(process, port, full)
    try:
        limit = time.monotonic() + 120
        while not _answers(port):
            assert process.poll() is None and time.monotonic() < limit
            time.sleep(0.1)
        for _ in range(3):
            got = httpx.post(f"{server.url}/v1/completions", json={"prompt": "x", "max_tokens": 4}, timeout=30)
            assert got.status_code == 200
            time.sleep(0.3)
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0
    finally:
        server.http.close()
        process.kill()
        process.wait()


def _answers(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/health").status_code == 200
    except httpx.TransportError:
        return False


@pytest.mark.slow
@pytest.mark.skipif(os.getuid() == 0 and not shutil.which("setpriv"), reason="root reads everything without setpriv")
def test_a_model_it_may_not_read_is_one_line(toy_model: Path, tmp_path: Path) -> None:
    """The weights, the configuration, the directory: each in turn out of reach."""
    for name in ("config.json", "model.safetensors", "."):
        model = tmp_path / f"without-{name.partition('.')[0]}"
        shutil.copytree(toy_model, model)
        (model / name).chmod(0)
        try:
            one_line(run(str(model), prefix=MODEST if os.getuid() == 0 else ()), "ermission denied", str(model))
        finally:
            (model / name).chmod(0o755)  # so that it can be deleted


@pytest.mark.slow
def test_damaged_files_are_one_line(toy_model: Path, tmp_path: Path) -> None:
    for name, content in (("model.safetensors", b"\x00" * 100), ("config.json", b"{"), ("tokenizer.json", b"[]")):
        model = tmp_path / name.partition(".")[0]
        model.mkdir()
        for file in toy_model.iterdir():
            (model / file.name).write_bytes(content if file.name == name else file.read_bytes())
        one_line(run(str(model)), str(model))


@pytest.fixture(scope="module")
def mortal(toy_model: Path) -> Iterator[Served]:
    """For two tests: the first leaves its engine as it was, the second ends it."""
    with served(toy_model) as server:
        yield server


@pytest.mark.slow
def test_a_stopped_engine_shows_and_recovers(mortal: Served) -> None:
    server, engine = mortal, mortal.engine_pid()
    os.kill(engine, signal.SIGSTOP)
    limit = time.monotonic() + SILENCE + 60
    while server.http.get("/health").status_code != 503 and time.monotonic() < limit:
        time.sleep(0.05)
    assert server.http.get("/health").status_code == 503 == server.http.get("/ping").status_code
    assert server.http.get("/metrics").status_code == 200  # the server itself is well
    asked = {"prompt": "x", "max_tokens": 2}
    refused = [server.http.post("/v1/completions", json={**asked, "stream": stream}) for stream in (True, False)]
    assert [(got.status_code, got.headers["retry-after"]) for got in refused] == [(503, "2")] * 2
    assert refused[0].json()["error"]["code"] == "engine_unavailable"
    time.sleep(1.5)
    assert server.log.count("the engine has said nothing for 10 seconds") == 1
    os.kill(engine, signal.SIGCONT)
    server.wait(120)
    assert server.engine_pid() == engine
    assert server.http.post("/v1/completions", json=asked).status_code == 200


@pytest.mark.slow
def test_three_deaths_end_the_server(mortal: Served) -> None:
    """Each engine is killed as soon as it is there, loaded or not."""
    server, dead = mortal, 0
    for _ in range(3):
        waited = time.monotonic() + 60
        while not (fresh := [pid for pid in server.children() if pid != dead]) and time.monotonic() < waited:
            time.sleep(0.02)
        dead = fresh[0]
        os.kill(dead, signal.SIGKILL)
    assert server.process.wait(120) == 1
    said = server.log.splitlines()[-1]
    assert said.startswith("error: the engine died 3 times") and "Traceback" not in server.log


class Engine:
    """What a watch sees of an engine."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.healthy, self.pid, self.used, self.kills = True, 7, 0.0, 0
        monkeypatch.setattr(watch, "processor_seconds", lambda pid: self.used)
        self.watch = Watch(lambda: self.healthy, lambda: self.pid or None, self.kill)

    def kill(self) -> None:
        self.kills += 1
        self.pid = 0

    def looks(self, count: float, busy: float = 0.0) -> None:
        for _ in range(int(count)):
            self.used += busy
            self.watch.look()


def test_a_stuck_engine_is_killed_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    engine = Engine(monkeypatch)
    engine.looks(100)
    assert not caplog.messages
    engine.healthy = False
    engine.looks(STUCK - SILENCE)
    assert engine.kills == 0 and len(caplog.messages) == 1 and "new requests are refused" in caplog.messages[0]
    engine.looks(1)
    assert engine.kills == 1 and "killed and started again" in caplog.messages[1]
    engine.looks(1000)  # it is being restarted
    engine.healthy, engine.pid = True, 8
    engine.looks(1000)
    assert engine.kills == 1 and len(caplog.messages) == 2


def test_an_engine_that_comes_back_or_works_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(monkeypatch)
    for _ in range(3):
        engine.healthy = False
        engine.looks(STUCK - SILENCE)
        engine.healthy = True
        engine.looks(1)
    engine.healthy = False
    engine.looks(LOST - SILENCE, busy=0.9)  # a very long step
    assert engine.kills == 0
    engine.looks(1, busy=0.9)
    assert engine.kills == 1


def test_processor_time_is_told() -> None:
    before, begun = processor_seconds(os.getpid()), time.process_time()
    while time.process_time() - begun < 0.1:
        pass
    assert 0.05 < processor_seconds(os.getpid()) - before < 5
    assert processor_seconds(1 << 30) == 0


@pytest.mark.slow
def test_a_hung_engine_is_replaced(hung: Hung) -> None:
    got, waited = hung.answer.result()
    assert got.status_code == 503 and got.json()["error"]["code"] == "engine_died"
    assert waited > STUCK - 5
    server = hung.server
    server.wait(60)
    assert server.engine_pid() != hung.engine
    assert server.http.post("/v1/completions", json={"prompt": "x", "max_tokens": 2}).status_code == 200
    assert "killed and started again" in server.log and "Traceback" not in server.log
