"""Which request gives up its KV cache blocks: clients share blocks as they share slots (turns.py), so that none can
fill the cache alone.

`running` is oldest first. The oldest request of a client is never preempted for another client's, and the oldest of all
is never preempted, so that all make progress.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from augury.engine.request import Request
from augury.engine.turns import LEVELS, SHARE


def crowding(running: Sequence[Request], request: Request, need: int) -> Request | None:
    """The newest request of the client, or else the job, that holds the most blocks, if it holds SHARE times what this
    request's would hold with `need` more; a client's or job's only request stays."""
    for level in range(1, LEVELS + 1):
        own = request.client[:level]
        peers = [r for r in running if r.client[: level - 1] == own[:-1]]
        held, largest = _held(peers, level, own)
        if largest != own and held[largest] >= SHARE * (held[own] + need):
            theirs = [r for r in peers if r.client[:level] == largest]
            return theirs[-1] if len(theirs) > 1 else None
    return None


def newest_of_many(running: Sequence[Request], holder: tuple[str, ...]) -> Request:
    """The newest request of the largest job of a client that holds several slots."""
    held = [r for r in running if r.client[: len(holder)] == holder]
    jobs = Counter(r.client for r in held)
    return max(held, key=lambda r: (jobs[r.client], r.arrival))  # never the client's oldest: it has several


def giving_way(running: Sequence[Request], request: Request, need: int) -> Request:
    """The request to preempt for a running one: as in `crowding`, or the newest of its own job or client if that holds
    the most, or else the newest of all, which may be the request itself."""
    if (other := crowding(running, request, need)) is not None:
        return other
    group = running
    for level in range(1, LEVELS + 1):
        own = request.client[:level]
        narrower = [r for r in group if r.client[:level] == own]
        if len(narrower) == 1 or _held(group, level, own)[1] != own:
            break
        group = narrower
    return group[-1]


def _held(
    running: Sequence[Request], level: int, default: tuple[str, ...]
) -> tuple[Counter[tuple[str, ...]], tuple[str, ...]]:
    """Blocks by client or job, and the one that holds the most."""
    held: Counter[tuple[str, ...]] = Counter()
    for request in running:
        held[request.client[:level]] += len(request.blocks)
    return held, max(held, key=held.__getitem__, default=default)
