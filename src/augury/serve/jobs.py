"""Prompts on their way through the engine, as the server sees them."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Collection
from typing import Any, Protocol

from augury.serve.backlog import Backlog, Updates
from augury.serve.errors import ApiError
from augury.serve.origin import origin
from augury.serve.shares import Shares
from augury.serve.wire import Message

ANSWERS, MOST_N = 16_384, 128  # answers at a time over all requests, and to one prompt


class Refused(Exception):
    """The engine would not take a request; the message says why."""


class Job:
    """One prompt and its n answers."""

    def __init__(
        self, number: int, batch: Batch, prompt_tokens: int, max_tokens: int | None, scored: bool = False
    ) -> None:
        self.id = number
        self.prompt_tokens = prompt_tokens
        self.max_tokens = max_tokens
        self.n = batch.n
        self.arrived = time.perf_counter()
        self.latest: dict[int, float] = {}  # when each answer last had new output
        self.generated = [0] * batch.n
        self.ended: set[int] = set()
        self.taken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._first_choice = len(batch.jobs) * batch.n
        self.batch = batch
        self.origin = origin.get()
        self.first: dict[int, float] = {}  # seconds until each answer's first token
        self._scored = scored  # the prompt's log-probabilities are wanted, by every answer
        self._scores: list[Any] = []
        self._unscored: list[Message] = []  # updates that wait for them
        self._begun: set[int] = set()

    @property
    def unbegun(self) -> bool:
        """Whether one of its answers has no output yet."""
        return len(self._begun) < self.n

    def put(self, update: Message) -> None:
        """Queue an update for the response; the first of an answer carries the prompt's scores."""
        if self._scored and len(self._scores) < self.prompt_tokens:
            self._unscored.append(update)
            return
        if self._scored and update["index"] not in self._begun:
            update["prompt_logprobs"] = self._scores
        self._begun.add(update["index"])
        self.batch.queue.put(self._first_choice + update["index"], update)

    def score(self, entries: list[Any]) -> None:
        """Take more of the prompt's scores, which come once for all n answers."""
        self._scores += entries
        if len(self._scores) >= self.prompt_tokens:
            waiting, self._unscored = self._unscored, []
            for update in waiting:
                self.put(update)

    def accept(self) -> None:
        """The engine has queued it."""
        if not self.taken.done():
            self.taken.set_result(None)

    def refuse(self, why: str) -> None:
        """The engine will not run it."""
        if not self.taken.done():
            self.taken.set_exception(Refused(why))

    def fail(self, error: ApiError) -> None:
        """The engine has died, or has failed on the job."""
        if not self.taken.done():
            self.taken.set_exception(error)
        self.batch.queue.put(0, error)


class Batch:
    """The prompts of one HTTP request; updates queue here until the response takes them."""

    def __init__(self, n: int, backlog: Backlog, client: str = "") -> None:
        self.n = n
        self.client = client  # the key it came with
        self.jobs: list[Job] = []
        self.queue = Updates(backlog)

    def add(self, number: int, prompt_tokens: int, max_tokens: int | None, scored: bool = False) -> Job:
        """One more prompt; its answers are choices n * i to n * i + n - 1."""
        job = Job(number, self, prompt_tokens, max_tokens, scored)
        self.jobs.append(job)
        return job


def check_room(jobs: Collection[Job], shares: Shares, client: str, more: int) -> None:
    """Refuse answers that would be too many at once; each has a record in the engine, running or waiting."""
    if MOST_N * len(jobs) + more <= shares.common:  # seldom more, and then they are counted
        return
    held: Counter[str] = Counter()
    for job in jobs:
        held[job.batch.client] += job.n - len(job.ended)
    if not shares.fit(held, client, more):
        raise ApiError(429, shares.why(held, client, more, "answers are being written"), code="too_many_answers")


def failure(message: Message) -> ApiError:
    """The error for a client whose request the engine has given up: "busy" or "broken"."""
    if message["type"] == "busy":
        return ApiError(503, message["message"], code="grammars_busy")
    return ApiError(500, f"the engine failed on this request: {message['message']}", code="engine_failed")


class Ear(Protocol):
    """A listener to what happens to jobs: the metrics."""

    def taken(self, job: Job) -> None:
        """The engine has queued a job."""
        ...

    def heard(self, message: Message) -> None:
        """The engine has sent a step or a beat."""
        ...

    def updated(self, job: Job, update: Message) -> None:
        """An answer has new output."""
        ...

    def aborted(self, job: Job, reason: str) -> None:
        """A job has ended early: its client left ("abort"), or the engine died ("error")."""
        ...

    def fault(self, where: str) -> None:
        """The server has caught an error of its own: with figures, engine, start or keeper."""
        ...
