"""The responses a suffix cache keeps: one tree per tenant, limited in number and size, the oldest evicted first."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from augury.index.suffix_arena import Arena
from augury.index.suffix_batch import extend
from augury.index.suffix_layout import NONE

CHUNK = 4096  # tokens added at once: room is made for their worst case


class Cached(NamedTuple):
    """A response in a tenant's tree."""

    tenant: str
    sequence: int


class Stock:
    """Trees, the responses in them, and the memory they share with the trees of running requests. Not thread-safe."""

    def __init__(self, arena: Arena, max_requests: int, gone: Callable[[str], None]) -> None:
        """`gone` is called with the name of each response that is dropped."""
        self.arena, self.max_requests = arena, max_requests
        self.cached: dict[str, Cached] = {}  # oldest first
        self._gone = gone
        self.roots: dict[str, int] = {}
        self._users: dict[str, int] = {}  # tenant -> responses and running requests that need its tree

    def hold(self, tenant: str) -> int:
        """The root of a tenant's tree, which stays until it is released as often as it is held."""
        if tenant not in self.roots:
            self.roots[tenant] = self.arena.plant()
        self._users[tenant] = self._users.get(tenant, 0) + 1
        return self.roots[tenant]

    def release(self, tenant: str) -> None:
        """Undo one `hold`."""
        self._users[tenant] -= 1
        if self._users[tenant] == 0:
            del self._users[tenant]
            self.arena.uproot(self.roots.pop(tenant))

    def keep(self, request: str, tenant: str) -> int:
        """A new, empty response; if there are too many, the oldest are evicted, never the new one."""
        sequence = self.arena.open(self.hold(tenant))
        self.cached[request] = Cached(tenant, sequence)
        while 0 <= self.max_requests < len(self.cached):
            self.evict(next(iter(self.cached)))
        return sequence

    def evict(self, request: str) -> None:
        """Drop a response."""
        tenant, sequence = self.cached.pop(request)
        self.arena.remove(sequence)
        self._gone(request)
        self.release(tenant)

    def make_room(self, tokens: int, sequences: int, spare: str | None = None) -> bool:
        """Grow, or drop the oldest responses other than `spare`, until this much more fits."""
        while not self.arena.ensure(tokens, sequences):
            oldest = next((name for name in self.cached if name != spare), None)
            if oldest is None:
                return False
            self.evict(oldest)
        return True

    def enter(self, sequence: int, ids: np.ndarray, spare: str | None = None) -> bool:
        """Append tokens to a sequence; False if not all of them fit."""
        for start in range(0, len(ids), CHUNK):
            part = ids[start : start + CHUNK]
            while not extend(*self.arena.arrays, sequence, NONE, part):
                if not self.make_room(len(part), 1, spare):
                    return False
        return True

    def add(self, request: str, ids: np.ndarray, tenant: str) -> bool:
        """Keep a finished response; False if there is no room for it."""
        if self.max_requests == 0 or not self.make_room(0, 1):
            return False
        if not self.enter(self.keep(request, tenant), ids, request):
            self.evict(request)
            return False
        return True
