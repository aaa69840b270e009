"""A server's life: keys, the log, a killed engine, a graceful end, and ends that are not."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import forked
import httpx
import openai
import pytest
from served import RUN, Served, served

from augury.serve import engine_client, engine_start
from augury.serve.engine_client import EngineClient
from augury.serve.engine_start import EngineFailed
from augury.serve.server import ServeError, bind
from augury.serve.service import Settings

KEY = {"Authorization": "Bearer second"}
LONG = {"prompt": "long", "max_tokens": 480, "ignore_eos": True, "temperature": 1, "n": 6}


@pytest.fixture(scope="module")
def server(toy_model: Path) -> Iterator[Served]:
    flags = ("--api-key", "first", "--api-key", "second", "--log-stats-interval", "0.5", "--shutdown-timeout", "30")
    detailed = ("--per-request-spec-decode-metrics", "detailed")
    with served(toy_model, "--served-model-name", "toy", *flags, *detailed, VLLM_API_KEY="third") as running:
        yield running


@pytest.mark.parametrize("key", ["first", "second", "third"])
def test_keys_open(server: Served, key: str) -> None:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0)
    assert client.completions.create(model="toy", prompt="x", max_tokens=1).choices


def test_wrong_keys_do_not(server: Served) -> None:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="fourth", max_retries=0)
    with pytest.raises(openai.AuthenticationError):
        client.completions.create(model="toy", prompt="x")
    for value in ("", "Bearer", "Basic first", "first", "Bearer firs", "Bearer first2", "Bearer \xe9"):
        headers = {b"authorization": value.encode("latin-1")}
        assert server.http.get("/v1/models", headers=headers).status_code == 401, value
    assert server.http.post("/tokenize", json={"prompt": "x"}).status_code == 401
    assert server.http.get("/health").status_code == server.http.get("/metrics").status_code == 200


def test_detailed_figures_and_the_log_lines(server: Served) -> None:
    few = {"ignore_eos": True, "allowed_token_ids": [65, 66, 67], "max_tokens": 120, "temperature": 0.5, "seed": 1}
    got = server.http.post("/v1/completions", json={"prompt": "abcabc", **few}, headers=KEY).json()
    figures = got["metrics"]["speculative_decoding"]
    assert sum(figures["per_step_accepted"]) == figures["num_accepted_draft_tokens"] > 0
    assert sum(figures["per_step_drafted"]) == figures["num_draft_tokens"]
    assert len(figures["per_step_drafted"]) == figures["num_spec_steps"]
    wanted = server.metrics()["vllm:spec_decode_num_draft_tokens_total"]
    limit = time.monotonic() + 60
    while sum(map(int, re.findall(r"Drafted: (\d+) tokens", server.log))) < wanted and time.monotonic() < limit:
        time.sleep(0.05)
    number = r"\d+\.\d\d"
    lines = server.log.splitlines()
    spec = [i for i, line in enumerate(lines) if "SpecDecoding metrics: " in line]
    assert spec
    assert re.search(
        rf"SpecDecoding metrics: Mean acceptance length: {number}, Accepted throughput: {number} tokens/s, "
        rf"Drafted throughput: {number} tokens/s, Accepted: \d+ tokens, Drafted: \d+ tokens, "
        r"Per-position acceptance rate: \d\.\d{3}(, \d\.\d{3}){3}, Avg Draft acceptance rate: \d+\.\d%$",
        lines[spec[0]],
    )
    assert "Engine 000: Avg prompt throughput: " in lines[spec[0] - 1]
    drafted = sum(int(found) for found in re.findall(r"Drafted: (\d+) tokens", server.log))
    assert drafted == server.metrics()["vllm:spec_decode_num_draft_tokens_total"]


def test_a_killed_engine_comes_back(server: Served) -> None:
    pid, answers = server.engine_pid(), {}

    def whole() -> None:
        answers["whole"] = httpx.post(f"{server.url}/v1/completions", json=LONG, headers=KEY, timeout=60)

    asking = threading.Thread(target=whole)
    asking.start()
    with server.http.stream("POST", "/v1/completions", json={**LONG, "stream": True}, headers=KEY) as stream:
        lines = stream.iter_lines()
        assert next(lines).startswith("data: {")
        while server.metrics()["vllm:num_requests_running"] < 12:
            time.sleep(0.005)
        os.kill(pid, signal.SIGKILL)
        rest = [line for line in lines if line]
    asking.join()
    assert json.loads(rest[-2].removeprefix("data: "))["error"]["code"] == "engine_died" and rest[-1] == "data: [DONE]"
    assert answers["whole"].status_code == 503 and answers["whole"].json()["error"]["code"] == "engine_died"
    assert server.http.get("/health").status_code == 503
    refused = server.http.post("/v1/completions", json={"prompt": "x"}, headers=KEY)
    assert refused.status_code == 503 and int(refused.headers["retry-after"]) > 0
    server.wait()
    assert server.engine_pid() != pid
    got = server.http.post("/v1/completions", json={"prompt": "x", "max_tokens": 3, "ignore_eos": True}, headers=KEY)
    assert got.json()["usage"]["completion_tokens"] == 3
    ended = server.metrics()['vllm:request_success_total{"finished_reason": "error"}']
    assert ended == 12  # the counters have outlived the engine


def test_told_to_end_it_finishes_what_it_has(server: Served) -> None:
    engine = server.engine_pid()
    with server.http.stream("POST", "/v1/completions", json={**LONG, "stream": True}, headers=KEY) as stream:
        lines = stream.iter_lines()
        next(lines)
        server.process.send_signal(signal.SIGTERM)
        while server.http.get("/health").status_code == 200:  # until the signal is there; a new client would take long
            pass
        refused = server.http.post("/v1/completions", json={"prompt": "x"}, headers=KEY)
        assert refused.status_code == 503 and refused.json()["error"]["code"] == "shutting_down"
        chunks = [json.loads(line.removeprefix("data: ")) for line in lines if line and line != "data: [DONE]"]
    assert sum(c["choices"][0]["finish_reason"] == "length" for c in chunks) == 6
    assert server.process.wait(120) == 0
    assert not Path(f"/proc/{engine}").exists()
    assert "Traceback" not in server.log


# --- ends that are not graceful -------------------------------------------------------------------------------------


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return forked.run([sys.executable, "-c", RUN, "serve", *words])


def one_line(done: subprocess.CompletedProcess[str], code: int, *words: str) -> None:
    assert done.returncode == code and done.stderr.count("\n") == 1 and done.stderr.startswith("error: "), done
    assert all(word in done.stderr for word in words), done.stderr


def test_a_port_in_use_is_one_line(toy_model: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = str(other.getsockname()[1])
        one_line(run(str(toy_model), "--port", port), 1, port, "another --port")


def test_a_model_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    one_line(run(str(tmp_path), "--port", "0"), 1, str(tmp_path))
    one_line(run(str(tmp_path / "none"), "--port", "0"), 1, "none")


def test_a_model_without_a_tokenizer_is_one_line(toy_model: Path, tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((toy_model / name).read_bytes())
    one_line(run(str(tmp_path), "--port", "0"), 1, "tokenizer")


def catches(pid: int, number: int) -> bool:
    """Whether a process has said what it does on a signal."""
    [caught] = re.findall(r"^SigCgt:\s*(\w+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return bool(int(caught, 16) >> (number - 1) & 1)


def test_told_to_end_while_it_loads(toy_model: Path) -> None:
    command = [sys.executable, "-c", RUN, "serve", str(toy_model), "--port", "0", "--device", "cpu"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while not (children.read_text() and catches(process.pid, signal.SIGTERM)):
        time.sleep(0.02)
    engine = children.read_text().split()[0]
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=60)[1] == "" and process.returncode == 0
    assert not Path(f"/proc/{engine}").exists()


def test_wrong_options_are_one_line(toy_model: Path) -> None:
    one_line(run(str(toy_model), "-sc", '{"method": "no_such"}'), 2, "no_such")
    one_line(run(str(toy_model), "--kv-transfer-config", "[]"), 2, "--kv-transfer-config")


def test_unix_sockets(tmp_path: Path) -> None:
    path = tmp_path / "s"
    settings = Settings("m", {}, ["m"], uds=str(path))
    bind(settings).close()  # leaves its file behind, as a killed server does
    with bind(settings) as ours:
        ours.listen()
        with pytest.raises(ServeError, match="cannot listen"):
            bind(settings)
    (tmp_path / "file").write_text("precious")
    with pytest.raises(ServeError, match="cannot listen"):
        bind(Settings("m", {}, ["m"], uds=str(tmp_path / "file")))
    assert (tmp_path / "file").read_text() == "precious"


class Deaf:
    """An ear that hears nothing."""

    def taken(self, job: Any) -> None: ...
    def heard(self, message: Any) -> None: ...
    def updated(self, job: Any, update: Any) -> None: ...
    def aborted(self, job: Any, reason: str) -> None: ...


def fake_engine(tmp_path: Path, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a script in the engine's place that answers the first message with one of its own and ends."""
    script = tmp_path / "engine"
    lines = [
        f"#!{sys.executable}",
        "import socket, sys, time",
        "end = socket.socket(fileno=int(sys.argv[3]))",
        "end.recv(1 << 16)",
        f"body = {says!r}.encode()",
        "end.sendall(len(body).to_bytes(4, 'big') + body)",
        "time.sleep(0.05)",
        "sys.exit(3)",
    ]
    script.write_text("\n".join(lines))
    script.chmod(0o755)
    monkeypatch.setattr(engine_start.sys, "executable", str(script))
    monkeypatch.setattr(engine_client, "FIRST_WAIT", 0.01)


def test_three_deaths_in_a_minute_end_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_engine(tmp_path, '{"type": "ready", "facts": {}}', monkeypatch)

    async def live() -> str:
        last: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        client = EngineClient("m", {}, Deaf(), last.set_result)
        await client.start()
        assert client.healthy
        client._heard -= engine_client.SILENCE  # not a word for that long
        assert client.ready and not client.healthy
        why = await asyncio.wait_for(last, 30)
        await client.stop()
        return why

    assert "died 3 times" in asyncio.run(live())


def test_an_engine_that_cannot_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def start() -> None:
        await EngineClient("m", {}, Deaf(), print).start()

    fake_engine(tmp_path, '{"type": "failed", "message": "no room"}', monkeypatch)
    with pytest.raises(EngineFailed, match="no room"):
        asyncio.run(start())
    monkeypatch.setattr(engine_start.sys, "executable", "/bin/false")
    with pytest.raises(EngineFailed, match="exit code 1"):
        asyncio.run(start())
