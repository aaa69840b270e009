"""What a replica has sent and the client has not taken yet; above a limit in bytes, the request ends."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

from starlette.types import Message

from augury.serve.backlog import EACH


class NotTaken(ConnectionError):
    """Too much of an answer waited for the client to take it."""


class Outbox:
    """Messages in the order they came."""

    def __init__(
        self, hang_up: Callable[[], None], most: int = EACH, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._hang_up, self._most, self._now = hang_up, most, now
        self._waiting: deque[tuple[Message, float]] = deque()
        self._held = 0
        self._ended = self._overrun = False
        self._come = asyncio.Event()

    async def put(self, message: Message) -> None:
        """Add a message; if more than the limit waits already, drop all of it, hang up and raise NotTaken."""
        if self._held > self._most:
            self._overrun = True
            self._forget()
            self._hang_up()
        if self._overrun:
            raise NotTaken("the answer was not taken fast enough, and too much of it waited.")
        self._waiting.append((message, self._now()))
        self._held += len(message.get("body", b""))
        self._come.set()

    def end(self) -> None:
        """Mark the answer as complete."""
        self._ended = True
        self._come.set()

    def age(self) -> float:
        """Seconds that the oldest message has waited; 0 where none does."""
        return self._now() - self._waiting[0][1] if self._waiting else 0.0

    async def take(self) -> list[Message]:
        """Wait for messages and take all there are; an empty list means the end."""
        while not self._waiting and not self._ended:
            self._come.clear()
            await self._come.wait()
        messages = [message for message, _ in self._waiting]
        self._forget()
        return messages

    def _forget(self) -> None:
        self._waiting.clear()
        self._held = 0
