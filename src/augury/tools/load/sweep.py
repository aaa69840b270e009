"""A sweep over concurrencies, on one server or on two that take turns."""

from __future__ import annotations

import asyncio
import gc
import json
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from augury.tools.load.dataset import Body, fitted, marked
from augury.tools.load.load import WARM_TOKENS, ArrivalPattern, Stopped, run_round
from augury.tools.load.request import Client
from augury.tools.load.results import Level
from augury.tools.load.scrape import counted_when_idle, gained

ROUNDS = 6  # maximum turns of each server at one concurrency
EACH = 4  # default requests per stream; three times as many if two servers take turns
WARM = "Count slowly from one to twenty, in words."


@dataclass(frozen=True, slots=True)
class BenchServer:
    """A server, its name for the model, and extra fields for every request to it."""

    name: str
    base: str
    model: str
    authorization: str | None = None  # the header's value
    extra: dict[str, Any] = field(default_factory=dict)
    again: bool = False  # both servers of a comparison are this one


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """The requests and settings of a sweep, the same for every server."""

    prompts: list[Body]
    concurrencies: list[int]
    num_prompts: int  # at each concurrency; 0: derived from the number of streams
    chat: bool
    options: dict[str, Any]  # fields of every request
    seed: int | None
    traffic: ArrivalPattern
    timeout: float
    turns: bool = False  # two servers take turns
    reuse: bool = False  # send prompts unchanged and repeatedly

    @property
    def path(self) -> str:
        """The URL path of the route."""
        return "/v1/chat/completions" if self.chat else "/v1/completions"

    def count(self, concurrency: int) -> int:
        """The number of requests at one concurrency."""
        return self.num_prompts or max(4, concurrency) * EACH * (3 if self.turns else 1)

    def rounds(self, concurrency: int) -> int:
        """Turns at one concurrency: one for a single server; of two servers, each turn fills its streams twice."""
        return max(1, min(ROUNDS, self.count(concurrency) // (2 * concurrency))) if self.turns else 1

    def bodies(self, concurrency: int, server: BenchServer) -> list[tuple[int, bytes]]:
        """Every request body, with the index of its prompt."""
        made = []
        for number in range(self.count(concurrency)):
            prompt = number % len(self.prompts)
            seeded = {} if self.seed is None else {"seed": self.seed + number}
            asked = self.prompts[prompt]
            if not self.reuse:
                # By concurrency and number, so that all runs and servers get the same; b: the same server again.
                asked = marked(asked, f"Request {concurrency}-{number + 1}{'b' * server.again}.")
            made.append((prompt, self._body(asked, server, seeded)))
        return made

    def warm_ups(self, concurrency: int, server: BenchServer) -> list[tuple[int, bytes]]:
        """Short warm-up requests with a prompt of their own, one per stream."""
        length = min(WARM_TOKENS, self.options.get("max_tokens") or WARM_TOKENS)
        asked = {"prompt": WARM}
        return [(-1, self._body(asked, server, {"max_tokens": length}))] * concurrency

    def _body(self, prompt: Body, server: BenchServer, more: dict[str, Any]) -> bytes:
        streamed = {"model": server.model, "stream": True, "stream_options": {"include_usage": True}}
        return json.dumps({**fitted(prompt, self.chat), **self.options, **more, **server.extra, **streamed}).encode()


@dataclass(slots=True)
class Sweep:
    """The measurements so far, by server and concurrency."""

    levels: dict[str, list[Level]] = field(default_factory=dict)
    interrupted: bool = False


def run(plan: SweepPlan, servers: list[BenchServer], tick: Callable[[str], None]) -> Sweep:
    """Run the whole sweep; Ctrl-C ends it and keeps what was measured."""
    sweep = Sweep({server.name: [] for server in servers})
    gc.collect()
    gc.freeze()  # so that collections during the measurement skip existing objects
    try:
        asyncio.run(_run(plan, servers, tick, sweep))
    finally:
        gc.unfreeze()
    return sweep


async def _run(plan: SweepPlan, servers: list[BenchServer], tick: Callable[[str], None], sweep: Sweep) -> None:
    stopped, loop = Stopped(), asyncio.get_running_loop()

    def stop() -> None:
        stopped()
        loop.remove_signal_handler(signal.SIGINT)  # a second Ctrl-C interrupts at once

    loop.add_signal_handler(signal.SIGINT, stop)
    clients = {server.name: Client(server.base, plan.path, server.authorization, plan.timeout) for server in servers}
    try:
        for concurrency in plan.concurrencies:
            if not stopped.asked:
                await _level(plan, servers, clients, concurrency, stopped, tick, sweep)
    finally:
        sweep.interrupted = stopped.asked
        loop.remove_signal_handler(signal.SIGINT)
        for client in clients.values():
            client.close()


async def _level(
    plan: SweepPlan,
    servers: list[BenchServer],
    clients: dict[str, Client],
    concurrency: int,
    stopped: Stopped,
    tick: Callable[[str], None],
    sweep: Sweep,
) -> None:
    """Measure one concurrency: warm up every server, then take turns, reversing the order every other turn."""
    levels = {server.name: Level(concurrency) for server in servers}
    rounds = plan.rounds(concurrency)
    for number in range(rounds):
        for server in servers if number % 2 == 0 else reversed(servers):
            client, level = clients[server.name], levels[server.name]
            said = f"{concurrency} stream{'s' * (concurrency > 1)}, {server.name}"
            if number == 0 and not stopped.asked:
                await run_round(
                    client, plan.warm_ups(concurrency, server), concurrency, ArrivalPattern(), stopped, _quiet
                )
            if stopped.asked:
                continue
            share = plan.bodies(concurrency, server)[number::rounds]
            before = await asyncio.to_thread(counted_when_idle, server.base, server.authorization)
            done = await run_round(client, share, concurrency, plan.traffic, stopped, partial(tick, said))
            after = await asyncio.to_thread(counted_when_idle, server.base, server.authorization)
            for outcome in done.outcomes:
                outcome.round = number
            level.outcomes += done.outcomes
            level.seconds += done.seconds
            level.counted.append(gained(before, after))
    for server in servers:
        if levels[server.name].outcomes:
            sweep.levels[server.name].append(levels[server.name])


def _quiet() -> None:
    pass
