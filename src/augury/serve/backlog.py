"""Updates that wait for clients to take them, with one limit in bytes for a request and one for all of them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from augury.serve.errors import ApiError
from augury.serve.wire import Message

EACH, ALL = 8 << 20, 256 << 20  # bytes, roughly
BASE, A_CHARACTER, A_TOKEN, AN_ENTRY = 600, 2, 40, 300  # bytes of memory that an update and its parts take
Item = tuple[int, Message | ApiError]


def weight(update: Message) -> int:
    """About how many bytes an update takes; a list shared by several is not counted."""
    trace = update.get("trace", {})
    drafted = len(trace["draft"]["ids"]) if "draft" in trace else 0
    entries = sum(map(len, update.get("logprobs", ()))) + len(trace.get("tokens", ())) + drafted
    return BASE + A_CHARACTER * len(update["text"]) + A_TOKEN * len(update["tokens"]) + AN_ENTRY * entries


class Backlog:
    """The waiting updates of all requests."""

    def __init__(self, each: int = EACH, most: int = ALL) -> None:
        self.each, self.most = each, most
        self.held = 0
        self._queues: set[Updates] = set()

    def grew(self, queue: Updates) -> None:
        """Cut off a request that holds too much and, while all together do, the one that holds the most."""
        self._queues.add(queue)
        if queue.held > self.each:
            queue.cut_off()
        while self.held > self.most and self._queues:
            max(self._queues, key=lambda one: one.held).cut_off()

    def emptied(self, queue: Updates) -> None:
        """Stop tracking a queue that holds nothing."""
        self._queues.discard(queue)


class Updates:
    """One request's updates, in the order they came."""

    def __init__(self, backlog: Backlog) -> None:
        self.held = 0
        self.overrun = asyncio.Event()  # its client fell too far behind
        self.on_overrun: Callable[[], None] | None = None
        self._backlog = backlog
        self._items: deque[tuple[Item, int]] = deque()
        self._come = asyncio.Event()

    def put(self, choice: int, update: Message | ApiError) -> None:
        """Add an update; once the client is cut off, only the error that says so is added."""
        if self.overrun.is_set() and not isinstance(update, ApiError):
            return
        size = 0 if isinstance(update, ApiError) else weight(update)
        self._items.append(((choice, update), size))
        self._come.set()
        self._hold(size)
        if size:
            self._backlog.grew(self)

    async def get(self) -> Item:
        """Take the oldest update, waiting until there is one."""
        while not self._items:
            self._come.clear()
            await self._come.wait()
        item, size = self._items.popleft()
        self._hold(-size)
        return item

    def cut_off(self) -> None:
        """Drop what waits, since the client does not read it, and end the answer with an error."""
        self.clear()
        self.overrun.set()
        if self.on_overrun is not None:
            self.on_overrun()
        self.put(0, ApiError(503, "the answer was not read fast enough, and too much of it waited.", code="overrun"))

    def clear(self) -> None:
        """Drop what waits."""
        self._items.clear()
        self._hold(-self.held)

    def _hold(self, more: int) -> None:
        self.held += more
        self._backlog.held += more
        if not self.held:
            self._backlog.emptied(self)
