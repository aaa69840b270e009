"""Find the requests that make a pass fail: its halves are run again until each request has succeeded or fails alone.

A pass commits nothing before it is over, so the host's records are still those from before it. Cache rows and history
are written by position and noise is keyed by position: what runs again in a smaller pass comes out the same.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

import torch

from augury.engine.commit import Update
from augury.engine.request import Request
from augury.engine.scheduled import ScheduledRequest
from augury.parallel.errors import RanksLost

if TYPE_CHECKING:
    from augury.engine.engine import Engine

WHY = 300  # characters of an error that a client is shown
Culprits = dict[Request, Exception]


def recover(engine: Engine, scheduled: list[ScheduledRequest], error: Exception) -> list[Update]:
    """Run a failed pass again in parts, end the requests that fail alone, and give the others their results.

    Raises `error` if every request fails: then no single request is the cause.
    """
    admitted, engine.scheduler.seated = set(engine.scheduler.seated), []
    culprits: Culprits = {}
    for request in sorted(admitted.difference(engine.in_step), key=lambda r: r.arrival):  # they are not scheduled yet
        try:
            engine.seat(request)
        except Exception as caught:
            culprits[request] = caught
    engine.in_step += culprits

    def again(part: list[ScheduledRequest]) -> list[Update]:
        for item in part:
            engine.seat(item.request, item.request in admitted)
        # The failed pass may have left other drafts than those that grammars have seen.
        return engine.run_pass([item._replace(nodes=0) if item.request.grammar else item for item in part])

    updates, others = isolate(scheduled, again, error)
    return updates + [end(engine, *culprit) for culprit in {**culprits, **others}.items()]


def run_again(engine: Engine, scheduled: list[ScheduledRequest], error: Exception) -> list[Update]:
    """Like `recover`, for a pass that was launched while earlier ones were in flight; by now they have landed."""
    left = [engine.scheduler.known(item) for item in scheduled if item.epoch == item.request.epoch]
    engine.in_step = [item.request for item in left]
    return recover(engine, left, error)


def end(engine: Engine, request: Request, error: Exception) -> Update:
    """End a request because of an error that it alone caused."""
    request.finish_reason, request.stop_reason = "error", f"{type(error).__name__}: {error}"[:WHY]
    if request.slot >= 0:
        with suppress(Exception):  # a drafter that fails on it may fail to forget it, too
            engine.finish(request)
    return Update(request, [], 0, error=error)


def isolate(
    scheduled: list[ScheduledRequest], again: Callable[[list[ScheduledRequest]], list[Update]], error: Exception
) -> tuple[list[Update], Culprits]:
    """Run a failed pass in parts; returns updates, and the requests that fail even alone. Raises `error` if all do."""
    if len(scheduled) < 2 or _of_the_device(error):
        raise error
    updates: list[Update] = []
    culprits: Culprits = {}
    parts = _halves(scheduled)
    while parts:
        part = parts.pop()
        try:
            updates += again(part)
        except Exception as caught:
            if _of_the_device(caught):
                raise
            if len(part) == 1:
                culprits[part[0].request] = caught
            else:
                parts += _halves(part)
    if len(culprits) == len(scheduled):
        raise error
    return updates, culprits


def _halves(scheduled: list[ScheduledRequest]) -> list[list[ScheduledRequest]]:
    """The second half first, because they go to a stack that is popped from its end."""
    middle = len(scheduled) // 2
    return [scheduled[middle:], scheduled[:middle]]


def _of_the_device(error: Exception) -> bool:
    """Whether the accelerator itself has failed, or another rank: whatever runs there next fails too."""
    return isinstance(error, torch.AcceleratorError | RanksLost)
