"""A server in a process of its own on a free loopback port, for tests; it is stopped when the test is done."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

import forked
import httpx

NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 2, "prompt_lookup_max": 3}
RUN = "from augury.cli import main; main()"
STRICT = (  # two names, and limits low enough to be met
    "--served-model-name",
    "toy",
    "--served-model-name",
    "org/toy",
    "--max-concurrent-requests",
    "12",
    "--max-request-bytes",
    "200000",
    "--read-timeout",
    "1.5",
)


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Served:
    """One running server."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, log: IO[bytes]) -> None:
        self.process = process
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.http = httpx.Client(base_url=self.url, timeout=60)
        self._log = log

    @property
    def log(self) -> str:
        """What it has written so far."""
        return Path(self._log.name).read_text(errors="replace")

    def wait(self, seconds: float = 180) -> None:
        """Until it is healthy."""
        limit = time.monotonic() + seconds
        while time.monotonic() < limit:
            if self.process.poll() is not None:
                raise AssertionError(f"the server ended with {self.process.returncode}:\n{self.log}")
            try:
                if self.http.get("/health").status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.05)
        raise AssertionError(f"the server is not healthy after {seconds} seconds:\n{self.log}")

    def children(self) -> list[int]:
        """Processes the server has started."""
        return [
            int(pid) for pid in Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        ]

    def engine_pid(self) -> int:
        """The engine process, which is the server's only child."""
        children = self.children()
        assert len(children) == 1, children
        return children[0]

    def metrics(self) -> dict[str, float]:
        """Every sample of /metrics, by name with labels other than model and engine."""
        from prometheus_client.parser import text_string_to_metric_families

        found: dict[str, float] = {}
        for family in text_string_to_metric_families(self.http.get("/metrics").text):
            for sample in family.samples:
                rest = {k: v for k, v in sample.labels.items() if k not in ("model_name", "engine")}
                found[sample.name + (json.dumps(rest, sort_keys=True) if rest else "")] = sample.value
        return found

    def until_idle(self, seconds: float = 120) -> dict[str, Any]:
        """Wait until the engine runs nothing; gives /augury/live."""
        limit = time.monotonic() + seconds
        while time.monotonic() < limit:
            figures = self.metrics()
            if figures["vllm:num_requests_running"] == figures["vllm:num_requests_waiting"] == 0:
                return dict(self.http.get("/augury/live").json())
            time.sleep(0.02)
        raise AssertionError("the engine still runs something")


@contextmanager
def served(
    model: Path | str, *flags: str, spec: dict[str, Any] | None = NGRAM, fresh: bool = False, **extra: str
) -> Iterator[Served]:
    """Start `augury serve MODEL` with these flags, wait until it is healthy, and stop it in the end.

    `fresh` for a process of its own from the first instruction on; else it is a fork with its imports done.
    """
    port = free_port()
    words = ["serve", str(model), "--port", str(port), "--device", "cpu", *flags]
    if spec is not None:
        words += ["-sc", json.dumps(spec)]
    with tempfile.NamedTemporaryFile(prefix="augury-serve-", suffix=".log") as log:
        env = {**os.environ, "HF_HUB_OFFLINE": "1", **extra}
        start = subprocess.Popen if fresh else forked.popen
        process = start([sys.executable, "-c", RUN, *words], env=env, stdout=log, stderr=log)
        server = Served(process, port, log)
        try:
            server.wait()
            yield server
        finally:
            server.http.close()
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(120)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


class Shared:
    """One server for several files; whoever has had it must leave it as it was, or the next gets another one."""

    def __init__(self, model: Path, *flags: str) -> None:
        self._start = lambda: served(model, *flags, fresh=True)
        self._stack = ExitStack()
        self._server: Served | None = None

    def __enter__(self) -> Shared:
        return self

    def __exit__(self, *failure: object) -> None:
        self._stack.close()

    @contextmanager
    def lent(self) -> Iterator[Served]:
        """The server, then the proof that it is idle and well; its counters go on, so that tests read differences."""
        server = self._server or self._stack.enter_context(self._start())
        self._server, engine = server, server.engine_pid()
        try:
            yield server
            server.until_idle()
            assert server.engine_pid() == engine, "the engine was replaced"
            assert server.metrics()["vllm:kv_cache_usage_perc"] == 0
            assert "Traceback" not in server.log and " ERROR " not in server.log, server.log
        except BaseException:
            self._server = None
            self._stack.close()
            raise
