"""What a machine may do to a server: a full disk, files it may not read, an engine that stops or dies and dies."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx
import pytest
from served import RUN, Served, free_port, served
from tiny_gguf import write_gguf

from augury.serve.engine_client import SILENCE

MODEST = ("setpriv", "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-all")  # root that heeds modes


def run(*words: str, prefix: Sequence[str] = (), **extra: str) -> subprocess.CompletedProcess[str]:
    command = [*prefix, sys.executable, "-c", RUN, "serve", *words, "--port", "0", "--device", "cpu"]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env={**os.environ, **extra})


def one_line(done: subprocess.CompletedProcess[str], *words: str) -> None:
    assert done.returncode in (1, 2) and done.stderr.count("\n") == 1 and done.stderr.startswith("error: "), done
    assert all(word in done.stderr for word in words), done.stderr


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
        process = subprocess.Popen([sys.executable, "-c", RUN, *words], stdout=full, stderr=full)
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
        assert process.wait(20) == 0
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


@pytest.mark.slow
def test_a_stopped_engine_shows_and_recovers_and_three_deaths_end_it(toy_model: Path) -> None:
    with served(toy_model) as server:
        engine = server.engine_pid()
        os.kill(engine, signal.SIGSTOP)
        time.sleep(SILENCE + 0.5)
        assert server.http.get("/health").status_code == 503 == server.http.get("/ping").status_code
        assert server.http.get("/metrics").status_code == 200  # the server itself is well
        os.kill(engine, signal.SIGCONT)
        server.wait(10)
        assert server.engine_pid() == engine
        begun = time.monotonic()
        for death in range(3):
            os.kill(server.engine_pid(), signal.SIGKILL)
            if death < 2:
                time.sleep(0.2)
                server.wait(60)
        if time.monotonic() - begun > 55:
            pytest.skip("the machine is too busy for three restarts within a minute")
        assert server.process.wait(20) == 1
        assert (
            server.log.splitlines()[-1].startswith("error: the engine died 3 times") and "Traceback" not in server.log
        )
