"""Prompts on their way through the engine, as the server sees them."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol

from augury.serve.errors import ApiError
from augury.serve.wire import Message


class Refused(Exception):
    """The engine would not take a request; the message says why."""


class Job:
    """One prompt and its n answers."""

    def __init__(self, number: int, batch: Batch, prompt_tokens: int, max_tokens: int | None) -> None:
        self.id = number
        self.prompt_tokens = prompt_tokens
        self.max_tokens = max_tokens
        self.n = batch.n
        self.arrived = time.perf_counter()
        self.latest: dict[int, float] = {}  # when each answer last got something
        self.generated = [0] * batch.n
        self.ended: set[int] = set()
        self.taken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._first_choice = len(batch.jobs) * batch.n
        self._queue = batch.queue

    def put(self, update: Message) -> None:
        """Queue an update for the response."""
        self._queue.put_nowait((self._first_choice + update["index"], update))

    def accept(self) -> None:
        """The engine has queued it."""
        if not self.taken.done():
            self.taken.set_result(None)

    def refuse(self, why: str) -> None:
        """The engine will not run it."""
        if not self.taken.done():
            self.taken.set_exception(Refused(why))

    def fail(self, error: ApiError) -> None:
        """The engine has died."""
        if not self.taken.done():
            self.taken.set_exception(error)
        self._queue.put_nowait((0, error))


class Batch:
    """The prompts of one HTTP request; updates queue here until the response takes them."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.jobs: list[Job] = []
        self.queue: asyncio.Queue[tuple[int, Message | ApiError]] = asyncio.Queue()

    def add(self, number: int, prompt_tokens: int, max_tokens: int | None) -> Job:
        """One more prompt; its answers are choices n * i to n * i + n - 1."""
        job = Job(number, self, prompt_tokens, max_tokens)
        self.jobs.append(job)
        return job


class Ear(Protocol):
    """Who wants to know what happens to jobs: the metrics."""

    def taken(self, job: Job) -> None:
        """The engine has queued a job."""
        ...

    def heard(self, message: Message) -> None:
        """The engine has sent a step or a beat."""
        ...

    def updated(self, job: Job, update: Message) -> None:
        """An answer got something."""
        ...

    def aborted(self, job: Job, reason: str) -> None:
        """A job has ended early: its client left ("abort"), or the engine died ("error")."""
        ...

    def fault(self, where: str) -> None:
        """The server has caught an error of its own: with figures, engine, start or keeper."""
        ...
