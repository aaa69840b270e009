"""Throughput of one replica and of two on this machine, one thread each: python tests/helpers/fleet_speed.py."""

from __future__ import annotations

import argparse
import asyncio
import time
from statistics import median
from typing import Any

import fleets
import httpx

TOPICS = ("rivers", "bridges", "trains", "bread", "whales", "maps", "clocks", "mills", "wool", "stars")


def bodies(count: int, tokens: int, run: int) -> list[dict[str, Any]]:
    """Prompts that no cache has seen."""
    texts = [
        f"Run {run}, text {n}: a short history of {TOPICS[n % 10]} and what people say of them." for n in range(count)
    ]
    return [{"prompt": text, "max_tokens": tokens, "temperature": 0, "ignore_eos": True} for text in texts]


async def whole(http: httpx.AsyncClient, body: dict[str, Any]) -> None:
    """One request whose answer comes at once."""
    (await http.post("/v1/completions", json=body)).raise_for_status()


async def timed(url: str, asked: list[dict[str, Any]], streaming: bool) -> float:
    """Tokens a second of all of them together."""
    async with fleets.clients(url, len(asked)) as http:
        begun = time.monotonic()
        one = fleets.stream if streaming else whole
        await asyncio.gather(*(one(http, body) for body in asked))
        return sum(body["max_tokens"] for body in asked) / (time.monotonic() - begun)


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="default")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kinds", default="whole,stream")
    given = parser.parse_args()
    words = ("--replica-cpus", "1", "--max-model-len", "2048")
    with (
        fleets.fleet(given.model, *words, "--max-replicas", "1", replicas=1) as one,
        fleets.fleet(given.model, *words, replicas=2) as two,
    ):
        for running in (one, two):
            asyncio.run(timed(running.url, bodies(8, 8, -1), False))  # threads, connections
        for kind in given.kinds.split(","):
            ratios = []
            for run in range(given.rounds):  # by turns, so that what else the machine does hits both
                asked = bodies(given.clients, given.tokens, run)
                speeds = [asyncio.run(timed(running.url, asked, kind == "stream")) for running in (one, two)]
                ratios.append(speeds[1] / speeds[0])
                print(kind, [round(speed, 1) for speed in speeds], f"{ratios[-1]:.3f}x", flush=True)
            print(f"{kind}: median {median(ratios):.3f}x", flush=True)


if __name__ == "__main__":
    main()
