"""Replicas on a real Ray, in a process of their own; clients that stream, and a way to kill a replica."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import httpx
from served import RUN, Served, free_port

MARK = "AUGURY_FLEET"  # in the environment of all processes of one fleet
SAMPLE = re.compile(r"^(?P<name>[\w:]+)\{(?P<labels>.*)\} (?P<value>\S+)$")


@dataclass
class Answer:
    """What came of one stream."""

    text: str = ""
    error: str | None = None  # its code
    done: bool = False
    pieces: int = 0


class Fleet(Served):
    """A running fleet."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, log: IO[bytes], mark: str, model: str) -> None:
        super().__init__(process, port, log)
        self.mark, self.model = mark, model

    def engines(self) -> list[int]:
        """The processes of the replicas, which hold their applications; each has an engine below it."""
        found = []
        for directory in Path("/proc").glob("[0-9]*"):
            try:
                words = (directory / "cmdline").read_bytes()
                if words.startswith(b"ray::ServeReplica:augury:engines") and self._ours(directory):
                    found.append(int(directory.name))
            except OSError:
                continue
        return sorted(found)

    def _ours(self, directory: Path) -> bool:
        return f"{MARK}={self.mark}".encode() in (directory / "environ").read_bytes().split(b"\0")

    def rescale(self, replicas: int) -> None:
        """Have another number of replicas of the same model."""
        found = re.search(r"to Ray cluster at address: (\S+)|Ray runtime.*?address: (\S+)", self.log)
        words = [str(Path(__file__).with_name("rescale.py")), self.model, str(replicas), found[1] if found else "auto"]
        subprocess.run([sys.executable, *words], check=True, capture_output=True)

    def wait_for(self, happened: Callable[[], bool], seconds: float = 180) -> None:
        """Until something holds."""
        limit = time.monotonic() + seconds
        while not happened():
            assert time.monotonic() < limit, self.log
            time.sleep(0.2)

    def metric(self, name: str, **labels: str) -> dict[str, float]:
        """Values of a metric by replica, summed over other labels."""
        found: dict[str, float] = {}
        for line in self.http.get("/metrics").text.splitlines():
            sample = SAMPLE.match(line)
            if sample is None or sample["name"] != name:
                continue
            given = dict(re.findall(r'(\w+)="([^"]*)"', sample["labels"]))
            if all(given.get(key) == value for key, value in labels.items()):
                found[given["replica"]] = found.get(given["replica"], 0.0) + float(sample["value"])
        return found


@contextmanager
def fleet(model: Path | str, *words: str, replicas: int = 2, **environ: str) -> Iterator[Fleet]:
    """`augury serve MODEL --replicas N` on a free port, until the block ends."""
    port, mark = free_port(), os.urandom(8).hex()
    with tempfile.NamedTemporaryFile(suffix=".log") as log:
        command = [sys.executable, "-c", RUN, "serve", str(model), "--replicas", str(replicas), "--port", str(port)]
        env = {**os.environ, MARK: mark, **environ}
        process = subprocess.Popen([*command, *words], stdout=log, stderr=subprocess.STDOUT, env=env)
        running = Fleet(process, port, log.file, mark, str(model))
        try:
            running.wait(300)
            yield running
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(90)
                except subprocess.TimeoutExpired:
                    process.kill()


async def stream(http: httpx.AsyncClient, body: dict[str, Any], path: str = "/v1/completions") -> Answer:
    """One streaming request."""
    answer = Answer()
    async with http.stream("POST", path, json={**body, "stream": True}) as response:
        if response.status_code != 200:
            answer.error = json.loads(await response.aread())["error"]["code"]
            return answer
        async for line in response.aiter_lines():
            if line == "data: [DONE]":
                answer.done = True
            elif line.startswith("data: "):
                told = json.loads(line.removeprefix("data: "))
                answer.error = told.get("error", {}).get("code", answer.error)
                for choice in told.get("choices", ()):
                    answer.text += choice.get("text") or choice.get("delta", {}).get("content") or ""
                    answer.pieces += 1
    return answer


def clients(url: str, count: int) -> httpx.AsyncClient:
    """A client for so many requests at once."""
    limits = httpx.Limits(max_connections=count, max_keepalive_connections=count)
    return httpx.AsyncClient(base_url=url, timeout=600, limits=limits)


async def together(url: str, bodies: list[dict[str, Any]]) -> list[Answer]:
    """All of them at once, streaming."""
    async with clients(url, len(bodies)) as http:
        return list(await asyncio.gather(*(stream(http, body) for body in bodies)))
