"""Many streaming clients on one server: errors, times, fairness, and whether memory and blocks come back.

    python tests/helpers/soak.py --clients 64 --seconds 180 --model default -sc '{"method": "ngram", ...}'
    python tests/helpers/soak.py --url http://127.0.0.1:8000

The first starts a server of its own, the second uses one that runs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

TEXT = "the cat sat on a red mat and then the dog ran over to the tree by the old mill where nobody lives now"
LEAVE = 0.1  # share of requests whose client goes away midway
SHORTEST, LONGEST = 8, 160  # tokens of an answer
RUN = "from augury.cli import main; main()"


@dataclass
class Client:
    """What one client has seen."""

    tokens: int = 0
    waited: float = 0.0  # seconds with a request open
    done: int = 0
    left: int = 0
    first: list[float] = field(default_factory=list)  # seconds to each request's first token
    gaps: list[tuple[float, int]] = field(default_factory=list)  # between two chunks, and how many tokens came
    errors: Counter[str] = field(default_factory=Counter)


async def one_request(host: str, port: int, client: Client, dice: random.Random) -> None:
    """Ask, read the stream by the line, and leave early now and then."""
    prompt = " ".join(dice.choices(TEXT.split(), k=dice.randint(3, 60)))
    longest = dice.randint(SHORTEST, LONGEST)
    leave_at = dice.randint(1, longest) if dice.random() < LEAVE else None
    body = {
        "prompt": prompt,
        "max_tokens": longest,
        "stream": True,
        "ignore_eos": True,
        "return_token_ids": True,
        "temperature": dice.choice([0, 0.7]),
    }
    text = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Type: application/json\r\n"
    begun = latest = time.perf_counter()
    reader, writer = await asyncio.open_connection(host, port)
    got, ended = 0, False
    try:
        writer.write(f"{head}Content-Length: {len(text)}\r\n\r\n".encode() + text)
        status = (await reader.readline()).split(b" ")[1].decode()
        if status != "200":
            client.errors[f"status {status}"] += 1
            return
        while line := await reader.readline():
            if not line.startswith(b"data: "):
                continue  # the head, and the sizes of HTTP's chunks
            if line == b"data: [DONE]\n":
                ended = True
                break
            event = json.loads(line[6:])
            if "error" in event:
                client.errors[event["error"]["message"]] += 1
                return
            count, now = len(event["choices"][0]["token_ids"]), time.perf_counter()
            if got:
                client.gaps.append((now - latest, count))
            elif count:
                client.first.append(now - begun)
            got, latest = got + count, now
            if leave_at is not None and got >= leave_at:
                client.left += 1
                return
        if not ended or got != longest:
            client.errors["a stream ended early"] += 1
        client.done += 1
    finally:
        client.tokens += got
        client.waited += time.perf_counter() - begun
        writer.close()


async def crowd(url: str, clients: int, seconds: float, half_time: Any) -> tuple[list[Client], float]:
    """All clients, each with one request after another until time is up; the last ones may finish."""
    parts, deadline = urlsplit(url), time.monotonic() + seconds
    everyone = [Client() for _ in range(clients)]

    async def live(number: int, client: Client) -> None:
        dice = random.Random(number)
        while time.monotonic() < deadline:
            try:
                await one_request(parts.hostname or "", parts.port or 80, client, dice)
            except (OSError, asyncio.IncompleteReadError) as error:
                client.errors[type(error).__name__] += 1
                await asyncio.sleep(0.1)

    async def watch() -> None:
        await asyncio.sleep(seconds / 2)
        half_time()

    begun = time.monotonic()
    await asyncio.gather(watch(), *(live(number, client) for number, client in enumerate(everyone)))
    return everyone, time.monotonic() - begun


def jain(values: list[float]) -> float:
    """1 when all are alike, 1/n when one has everything."""
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 0.0


def quantile(weighted: list[tuple[float, int]], share: float) -> float:
    """The value below which this share of the weight lies."""
    total, seen = sum(weight for _, weight in weighted), 0
    for value, weight in sorted(weighted):
        seen += weight
        if seen >= share * total:
            return value
    return 0.0


def between(gaps: list[tuple[float, int]]) -> dict[str, float]:
    """Milliseconds between tokens (a chunk's wait shared by its tokens) and between chunks."""
    tokens = [(wait / count, count) for wait, count in gaps if count]
    chunks = [(wait, 1) for wait, _ in gaps]
    return {
        "token_gap_p50_ms": round(1000 * quantile(tokens, 0.5), 2),
        "token_gap_p99_ms": round(1000 * quantile(tokens, 0.99), 2),
        "chunk_gap_p99_ms": round(1000 * quantile(chunks, 0.99), 2),
        "chunk_gap_max_ms": round(1000 * max((wait for wait, _ in chunks), default=0), 2),
    }


def summary(everyone: list[Client], seconds: float) -> dict[str, Any]:
    """The figures of one run."""
    first = [(value, 1) for client in everyone for value in client.first]
    errors = sum((client.errors for client in everyone), Counter())
    return {
        "clients": len(everyone),
        "seconds": round(seconds, 1),
        "requests_done": sum(client.done for client in everyone),
        "requests_left_midway": sum(client.left for client in everyone),
        "errors": dict(errors),
        "tokens_per_second": round(sum(client.tokens for client in everyone) / seconds, 1),
        "first_token_p50_ms": round(1000 * quantile(first, 0.5), 1),
        "first_token_p99_ms": round(1000 * quantile(first, 0.99), 1),
        **between([gap for client in everyone for gap in client.gaps]),
        "fairness_jain": round(jain([c.tokens / c.waited for c in everyone if c.waited]), 4),
    }


class Watched:
    """The server's own account: blocks free, and the memory of its two processes if it is ours."""

    def __init__(self, url: str, process: subprocess.Popen[bytes] | None) -> None:
        self.url, self.process = url, process
        self.found: dict[str, Any] = {}

    def note(self, when: str) -> None:
        """Remember how things stand."""
        self.found[f"blocks_free_{when}"] = self._blocks_free()
        if self.process is not None:
            pid = self.process.pid
            engine = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0]
            self.found[f"rss_mb_{when}"] = {"server": _resident(str(pid)), "engine": _resident(engine)}

    def _blocks_free(self) -> int:
        text = urllib.request.urlopen(f"{self.url}/metrics").read().decode()
        blocks = re.search(r'vllm:cache_config_info{[^}]*num_gpu_blocks="(\d+)"', text)
        usage = re.search(r"^vllm:kv_cache_usage_perc{[^}]*} (\S+)", text, re.MULTILINE)
        assert blocks and usage
        return round((int(blocks[1]) - 1) * (1 - float(usage[1])))  # one block is nobody's

    def idle(self) -> None:
        """Wait until nothing runs and the engine has said so."""
        for _ in range(200):
            if json.load(urllib.request.urlopen(f"{self.url}/load"))["server_load"] == 0:
                break
            time.sleep(0.1)
        time.sleep(1.5)  # a sign of life brings the last figures


def _resident(pid: str) -> int:
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) // 1024 if found else 0


def start(model: str, config: str | None) -> tuple[subprocess.Popen[bytes], str]:
    """A server of our own on a free port, once it is healthy."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = ["serve", model, "--port", str(port), *(["-sc", config] if config else [])]
    process = subprocess.Popen([sys.executable, "-c", RUN, *words], stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    while process.poll() is None:
        try:
            urllib.request.urlopen(f"{url}/health").close()
            return process, url
        except OSError:
            time.sleep(0.1)
    raise SystemExit("the server did not start; run `augury serve` to see why.")


def main() -> None:
    """Read the options, run, print one JSON object."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--clients", type=int, default=64)
    options.add_argument("--seconds", type=float, default=180)
    options.add_argument("--url", help="a server that runs; without it one is started")
    options.add_argument("--model", default="default")
    options.add_argument("-sc", "--speculative-config")
    given = options.parse_args()
    process, url = (None, given.url) if given.url else start(given.model, given.speculative_config)
    try:
        watched = Watched(url, process)
        asyncio.run(crowd(url, 4, 2, lambda: None))  # so that what is made once has been made
        watched.idle()
        watched.note("before")
        everyone, seconds = asyncio.run(crowd(url, given.clients, given.seconds, lambda: watched.note("halfway")))
        watched.idle()
        watched.note("after")
        print(json.dumps({**summary(everyone, seconds), **watched.found}, indent=1))
    finally:
        if process is not None:
            process.terminate()
            process.wait(60)


if __name__ == "__main__":
    main()
