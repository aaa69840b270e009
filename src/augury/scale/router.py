"""Which replica answers a request: the one that holds its session, within bounds on load. No Ray, no clock.

The same class routes live traffic (ingress.py) and drives the simulation of `augury capacity`.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping
from hashlib import blake2b
from typing import Literal, NamedTuple

import numpy as np

from augury.scale.prefix import Prefix

SLACK = 1.25  # a replica takes at most so many times the average; consistent hashing with bounded loads
CHANCE = 2.0  # and so many square roots of it, by which requests that come at random vary
FREE = 4  # requests at a time that a replica takes in any case: a batch of four costs little more than one
MARGIN = 2  # a new session leaves its home for the next best where that has so many requests fewer
REMEMBERED = 1 << 17  # sessions, and as many blocks: at 64 tokens a block, those of eight million tokens


class Choice(NamedTuple):
    """A replica, how it came to be chosen, and how many blocks of the prompt it is known to hold."""

    replica: str
    why: Literal["held", "home", "moved", "spread"]
    blocks: int


class NoReplicas(Exception):
    """There is no replica to answer."""


class Router:
    """Sends a session where it was, a new one where rendezvous hashing puts it, and neither to a drowning replica.

    Rendezvous hashing needs no memory: routers that know nothing of each other agree, and a replica that comes or goes
    moves only the sessions that it gets or had. Memory is for what hashing cannot know: sessions that went elsewhere
    because their home was busy stay there, and a new replica takes no session from its cache.
    """

    def __init__(self, slack: float = SLACK, free: int = FREE, remembered: int = REMEMBERED) -> None:
        self.slack, self.free, self._most = slack, free, remembered
        self._sessions: OrderedDict[bytes, tuple[str, ...]] = OrderedDict()  # where each was, the latest last
        self._held: OrderedDict[bytes, frozenset[str]] = OrderedDict()  # the replicas that hold a block
        self._seeds: dict[str, int] = {}
        self._groups: dict[frozenset[str], frozenset[str]] = {}  # so that equal sets are one object

    def choose(self, prefix: Prefix | None, loads: Mapping[str, int]) -> Choice:
        """One of the replicas in `loads`, which holds the requests that each is answering; what it gets is noted."""
        if not loads:
            raise NoReplicas
        bound = self.bound(loads)
        if prefix is None:
            open_ = (name for name, load in loads.items() if load < bound)
            return Choice(min(open_, key=lambda name: (loads[name], name)), "spread", 0)
        known = self._sessions.get(prefix.session, ())
        if here := [name for name in known if loads.get(name, bound) < bound]:
            found = self._depths(prefix.blocks, here)
            best = max(range(len(here)), key=lambda at: (found[here[at]], at))  # of equals the latest
            choice = Choice(here[best], "held", found[here[best]])
        else:
            choice = self._place(prefix, loads, bound, moved=bool(known))
        self._note(prefix, choice.replica)
        return choice

    def forget(self, replica: str) -> None:
        """A replica has gone, and its cache with it."""
        for digest in [digest for digest, names in self._held.items() if replica in names]:
            rest = self._held[digest] - {replica}
            if rest:
                self._held[digest] = self._groups.setdefault(rest, rest)
            else:
                del self._held[digest]
        for session in [session for session, names in self._sessions.items() if replica in names]:
            left = tuple(name for name in self._sessions[session] if name != replica)
            if left:
                self._sessions[session] = left
            else:
                del self._sessions[session]
        self._seeds.pop(replica, None)
        self._groups = {names: names for names in self._groups if replica not in names}

    def home(self, session: bytes, replicas: Collection[str]) -> str:
        """Where rendezvous hashing alone puts a session."""
        return self._ranked(session, replicas, 1)[0]

    def bound(self, loads: Mapping[str, int]) -> int:
        """Requests from which on a replica takes no more."""
        mean = (sum(loads.values()) + 1) / len(loads)
        return max(self.free, math.ceil(self.slack * mean + CHANCE * math.sqrt(mean)))

    def _place(self, prefix: Prefix, loads: Mapping[str, int], bound: int, moved: bool) -> Choice:
        """A new session's place: its home or the next best, whichever holds more of it or is much less busy."""
        open_ = [name for name, load in loads.items() if load < bound]  # never empty: not all are above the average
        pair = self._ranked(prefix.session, open_, 2)
        found = self._depths(prefix.blocks, pair)
        first, second = pair[0], pair[-1]
        better = found[second] > found[first] and loads[second] < loads[first] + MARGIN
        busy = loads[first] >= loads[second] + MARGIN
        best = second if better or busy else first
        return Choice(best, "moved" if moved or busy else "home", found[best])

    def _depths(self, blocks: Iterable[bytes], names: Collection[str]) -> dict[str, int]:
        """How many of the first blocks each replica holds."""
        found, left = dict.fromkeys(names, 0), set(names)
        for number, block in enumerate(blocks, 1):
            left &= self._held.get(block, frozenset())
            if not left:
                break
            for name in left:
                found[name] = number
        return found

    def _note(self, prefix: Prefix, replica: str) -> None:
        before = self._sessions.get(prefix.session, ())
        if before[-1:] != (replica,):
            self._sessions[prefix.session] = (*(name for name in before if name != replica), replica)
        self._sessions.move_to_end(prefix.session)
        for block in reversed(prefix.blocks):  # of a prompt, the end is forgotten first
            names = self._held.get(block)
            if names is None or replica not in names:
                both = (names or frozenset()) | {replica}
                self._held[block] = self._groups.setdefault(both, both)
            self._held.move_to_end(block)
        for memory in (self._sessions, self._held):
            while len(memory) > self._most:
                memory.popitem(last=False)

    # --- rendezvous -------------------------------------------------------------------------------------------------

    def _ranked(self, session: bytes, names: Collection[str], count: int) -> list[str]:
        """The replicas of the highest weights, the highest first."""
        listed = list(names)
        weights = _mixed(np.fromiter((self._seed(name) for name in listed), np.uint64, len(listed)), session)
        best = np.argsort(weights)[::-1][:count]
        return [listed[int(at)] for at in best]

    def _seed(self, name: str) -> int:
        seed = self._seeds.get(name)
        if seed is None:
            seed = self._seeds[name] = int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little")
        return seed


def _mixed(seeds: np.ndarray, session: bytes) -> np.ndarray:
    """A 64-bit weight for each replica, by the finaliser of splitmix64: every bit of both decides every bit."""
    mixed = seeds ^ np.uint64(int.from_bytes(session[:8], "little"))
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
