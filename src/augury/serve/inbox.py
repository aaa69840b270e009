"""Jobs that the engine process has not read yet: keys take turns, and so do the HTTP requests of a key.

Reading a job takes time, a thousand answers half a second: a request after sixteen such ones must not wait for all.
"""

from __future__ import annotations

from collections import OrderedDict

from augury.serve.wire import Message


class Inbox:
    """Messages by key and HTTP request, those of one request in the order they came."""

    def __init__(self) -> None:
        self._keys: OrderedDict[str, OrderedDict[str, OrderedDict[int, Message]]] = OrderedDict()
        self._whose: dict[int, tuple[str, str]] = {}  # by job

    def __len__(self) -> int:
        return len(self._whose)

    def add(self, message: Message) -> None:
        """Add a job; a new key's turn comes after one turn of every other key."""
        key, request = message["client"]
        self._whose[message["id"]] = key, request
        jobs = self._keys.setdefault(key, OrderedDict()).setdefault(request, OrderedDict())
        jobs[message["id"]] = message

    def pop(self) -> Message:
        """Take the next job; its key goes to the end of the line, and so does its request within the key."""
        key = next(iter(self._keys))
        requests = self._keys[key]
        request = next(iter(requests))
        requests.move_to_end(request)
        self._keys.move_to_end(key)
        return self._take(next(iter(requests[request])))

    def discard(self, job: int) -> None:
        """Forget a job, if it is here."""
        if job in self._whose:
            self._take(job)

    def _take(self, job: int) -> Message:
        key, request = self._whose.pop(job)
        requests = self._keys[key]
        message = requests[request].pop(job)
        if not requests[request]:
            del requests[request]
        if not requests:
            del self._keys[key]
        return message
