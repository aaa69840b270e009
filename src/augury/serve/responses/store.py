"""Responses that a later request may continue from: in memory, for an hour, each key's apart from the others'."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from augury.serve.errors import ApiError

BYTES = 64 << 20  # of all of them
EACH = 1 << 10  # bytes that one takes besides its JSON
SECONDS = 3600.0


@dataclass(slots=True)
class Kept:
    """A response, and the conversation that led to it and ends with it: as JSON, which is what is counted.

    Lists and objects take up to 45 times the memory of their JSON.
    """

    response: bytes
    items: bytes
    until: float

    @property
    def size(self) -> int:
        """Bytes that it takes."""
        return EACH + len(self.response) + len(self.items)


class Store:
    """The responses of all keys; a key that has no room left loses its own oldest, never another's."""

    def __init__(
        self, keys: int = 1, most: int = BYTES, seconds: float = SECONDS, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._most, self._seconds, self._now = most // max(1, keys), seconds, now
        self._kept: dict[str, OrderedDict[str, Kept]] = {}
        self._sizes: dict[str, int] = {}
        self._lock = threading.Lock()  # long responses are put together in threads

    def keep(self, client: str, name: str, response: bytes, items: bytes) -> None:
        """Remember a response; one that is too large for its key's share is not."""
        kept = Kept(response, items, self._now() + self._seconds)
        if kept.size > self._most:
            return
        with self._lock:
            for key in self._kept:
                self._expire(key)
            mine = self._kept.setdefault(client, OrderedDict())
            while mine and self._sizes.get(client, 0) + kept.size > self._most:
                self._drop(client, next(iter(mine)))
            mine[name] = kept
            self._sizes[client] = self._sizes.get(client, 0) + kept.size

    def get(self, client: str, name: str, field: str = "response_id") -> Kept:
        """A response of this key's; 404 if there is none, or no longer."""
        with self._lock:
            self._expire(client)
            found = self._kept.get(client, OrderedDict()).get(name)
        if found is None:
            why = f"{field}: no response {name[:100]!r} is kept here; they are kept for an hour, unless store is false."
            raise ApiError(404, why, field, "response_not_found")
        return found

    def forget(self, client: str, name: str) -> None:
        """Drop a response; 404 if there is none."""
        self.get(client, name)
        with self._lock:
            if name in self._kept[client]:
                self._drop(client, name)

    def held(self, client: str) -> int:
        """Bytes that a key's responses take."""
        return self._sizes.get(client, 0)

    def _expire(self, client: str) -> None:
        mine, now = self._kept.get(client, OrderedDict()), self._now()
        while mine and next(iter(mine.values())).until <= now:
            self._drop(client, next(iter(mine)))

    def _drop(self, client: str, name: str) -> None:
        self._sizes[client] -= self._kept[client].pop(name).size
