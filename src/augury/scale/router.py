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

SLACK = 1.25  # a replica takes at most this many times the mean load; consistent hashing with bounded loads
CHANCE = 2.0  # plus this many square roots of the mean, by which random arrivals vary
FREE = 4  # concurrent requests that a replica takes in any case: a batch of four costs little more than one
MARGIN = 2  # a new session leaves its home for the next best if that has this many fewer requests
REMEMBERED = 1 << 17  # sessions, and as many blocks: at 64 tokens a block, those of eight million tokens


class Choice(NamedTuple):
    """A replica, how it came to be chosen, and how many blocks of the prompt it is known to hold."""

    replica: str
    why: Literal["held", "home", "moved", "spread"]
    blocks: int


class NoReplicas(Exception):
    """There is no replica to answer."""


class Router:
    """Sends a session where it was before, a new one where rendezvous hashing puts it, neither to an overloaded one.

    Rendezvous hashing needs no state: routers that know nothing of each other agree, and a replica that is added or
    removed moves only the sessions that it gains or had. State is for what hashing cannot know: sessions that went
    elsewhere because their home was busy stay there, and a new replica takes no session away from its cache.
    """

    def __init__(self, slack: float = SLACK, free: int = FREE, remembered: int = REMEMBERED) -> None:
        self.slack, self.free, self._most = slack, free, remembered
        self._sessions: OrderedDict[bytes, tuple[str, ...]] = OrderedDict()  # replicas that served each, latest last
        self._held: OrderedDict[bytes, frozenset[str]] = OrderedDict()  # the replicas that hold a block
        self._seeds: dict[str, int] = {}
        self._groups: dict[frozenset[str], frozenset[str]] = {}  # so that equal sets are one object

    def choose(self, prefix: Prefix | None, loads: Mapping[str, int]) -> Choice:
        """Choose one of the replicas in `loads` (running requests by replica), and remember what it gets."""
        if not loads:
            raise NoReplicas
        bound = self.bound(loads)
        if prefix is None:
            open_ = (name for name, load in loads.items() if load < bound)
            return Choice(min(open_, key=lambda name: (loads[name], name)), "spread", 0)
        known = self._sessions.get(prefix.session, ())
        if here := [name for name in known if loads.get(name, bound) < bound]:
            found = self._depths(prefix.blocks, here)
            best = max(range(len(here)), key=lambda at: (found[here[at]], at))  # ties go to the latest
            choice = Choice(here[best], "held", found[here[best]])
        else:
            choice = self._place(prefix, loads, bound, moved=bool(known))
        self._note(prefix, choice.replica)
        return choice

    def forget(self, replica: str) -> None:
        """Forget a replica that has gone, and its cache with it."""
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
        """The number of running requests at which a replica takes no more."""
        mean = (sum(loads.values()) + 1) / len(loads)
        return max(self.free, math.ceil(self.slack * mean + CHANCE * math.sqrt(mean)))

    def _place(self, prefix: Prefix, loads: Mapping[str, int], bound: int, moved: bool) -> Choice:
        """Place a session on its home or the next best replica, whichever holds more of it or is much less busy."""
        open_ = [name for name, load in loads.items() if load < bound]  # never empty: not all are above the average
        pair = self._ranked(prefix.session, open_, 2)
        found = self._depths(prefix.blocks, pair)
        first, second = pair[0], pair[-1]
        better = found[second] > found[first] and loads[second] < loads[first] + MARGIN
        busy = loads[first] >= loads[second] + MARGIN
        best = second if better or busy else first
        return Choice(best, "moved" if moved or busy else "home", found[best])

    def _depths(self, blocks: Iterable[bytes], names: Collection[str]) -> dict[str, int]:
        """How many leading blocks each replica holds."""
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
        """The `count` replicas with the highest weights, the highest first."""
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
    """A 64-bit weight for each replica, by splitmix64's finaliser: every input bit affects every output bit."""
    mixed = seeds ^ np.uint64(int.from_bytes(session[:8], "little"))
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
