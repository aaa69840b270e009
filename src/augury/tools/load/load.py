"""Generates load: a number of requests at a concurrency or a rate."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from augury.tools.load.request import Client, RequestResult

WARM_TOKENS = 16


@dataclass(slots=True)
class Round:
    """The results of one stretch of load and its duration in seconds."""

    outcomes: list[RequestResult] = field(default_factory=list)
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class ArrivalPattern:
    """How requests arrive."""

    rate: float = float("inf")  # per second; infinite: as soon as a stream is free
    burstiness: float = 1.0  # 1: Poisson; smaller: in bursts; larger: evenly
    seed: int = 0

    def arrivals(self, count: int) -> list[float]:
        """Arrival times in seconds from the start."""
        if self.rate == float("inf"):
            return [0.0] * count
        gaps = np.random.default_rng(self.seed).gamma(self.burstiness, 1 / (self.rate * self.burstiness), count)
        return [float(moment) for moment in np.cumsum(gaps) - gaps[0]]


class Stopped:
    """Whether the user has asked to stop, and the tasks to cancel then."""

    def __init__(self) -> None:
        self.asked = False
        self._tasks: set[asyncio.Task[None]] = set()

    def watch(self, tasks: Sequence[asyncio.Task[None]]) -> None:
        """Remember the tasks in progress."""
        self._tasks = set(tasks)

    def __call__(self) -> None:
        """Stop: cancel the tasks in progress."""
        self.asked = True
        for task in self._tasks:
            task.cancel()


async def run_round(
    client: Client,
    bodies: Sequence[tuple[int, bytes]],
    concurrency: int,
    traffic: ArrivalPattern,
    stopped: Stopped,
    tick: Callable[[], None],
) -> Round:
    """Send the bodies, at most `concurrency` at once; requests that the user's stop interrupts are left out."""
    done, room = Round(), asyncio.Semaphore(concurrency)
    begun = time.perf_counter()

    async def one(prompt: int, body: bytes, moment: float) -> None:
        wait = begun + moment - time.perf_counter()
        if wait > 0:
            await asyncio.sleep(wait)
        async with room:
            done.outcomes.append(await client.send(prompt, body))
            tick()

    moments = traffic.arrivals(len(bodies))
    tasks = [
        asyncio.create_task(one(prompt, body, moment)) for (prompt, body), moment in zip(bodies, moments, strict=True)
    ]
    stopped.watch(tasks)
    if stopped.asked:
        stopped()
    found = await asyncio.gather(*tasks, return_exceptions=True)
    done.seconds = time.perf_counter() - begun
    for fault in found:
        if isinstance(fault, BaseException) and not isinstance(fault, asyncio.CancelledError):
            raise fault
    return done
