"""Compiled grammars, each in a process of its own: what is compiled next, what is kept, what is refused and why."""

from __future__ import annotations

import select
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

from augury.config.errors import ConfigError
from augury.engine.grammar_jobs import Busy, GrammarChild, GrammarJob, Ticket
from augury.engine.grammar_limits import GrammarLimits, outcome
from augury.engine.grammar_queue import FairQueue
from augury.engine.grammar_server import ForkServerClient
from augury.engine.grammar_source import GrammarSource
from augury.engine.grammar_wire import Gone
from augury.observe.stats import GRAMMAR_OUTCOMES

AT_ONCE = 2  # compilations; at most one of them of a large source, so that small ones are never held up by size alone
QUEUED = 256  # sources that may wait to be compiled
WAIT_SECONDS = 20.0  # that one may wait
WALL_SECONDS = 60.0  # that one may take on a busy machine; its processor time has its own, shorter limit
PROMISE_SECONDS = 5.0  # that a compiled grammar is held for the requests that asked for it
TRIES = 3  # for a compilation whose process the system ended, or a fork server that does not start
KEPT_BYTES = 64 << 20  # of compiled grammars not in use
LIVE_BYTES = 1 << 30  # of all of them
LIVE = 256  # processes
REFUSALS, REFUSED_SECONDS = 256, 30.0  # remembered, and for how long


class Refusal(NamedTuple):
    """An error that is remembered for a while."""

    error: Exception
    until: float


class Pool:
    """Compiles sources, keeps compiled grammars within a limit of bytes, and lets clients take turns."""

    def __init__(self, vocabulary: Callable[[], dict[str, Any]], limits: GrammarLimits) -> None:
        self.counts = dict.fromkeys(GRAMMAR_OUTCOMES, 0)
        self._vocabulary, self.limits = vocabulary, limits
        self._servers: list[ForkServerClient] = []  # at most one, started when it is first needed
        self._launch: threading.Thread | None = None
        self._launched: list[ForkServerClient | Exception] = []
        self._unstarted = 0
        self._queue: FairQueue[GrammarJob] = FairQueue(QUEUED)
        self._jobs: dict[str, GrammarJob] = {}  # queued or being compiled, by key
        self._compiling: list[GrammarJob] = []
        self._ready: OrderedDict[str, GrammarChild] = OrderedDict()  # the least recently used first
        self._refused: OrderedDict[str, Refusal] = OrderedDict()
        weakref.finalize(self, _close, self._servers)

    # --- asking ------------------------------------------------------------------------------------------------------

    def ask(self, source: GrammarSource, client: str = "") -> Ticket:
        """Queue a source to be compiled for a client; `poll` advances it."""
        key, ticket = source.key, Ticket()
        if (process := self._kept(key)) is not None:
            self.counts["reused"] += 1
            ticket.result = process
        elif (refusal := self._refused.get(key)) is not None and refusal.until > time.monotonic():
            ticket.result = refusal.error
        elif (job := self._jobs.get(key)) is not None:
            job.tickets.append(ticket)
        else:
            job = self._jobs[key] = GrammarJob(source, key, client, [ticket])
            if (left_out := self._queue.push(client, job)) is not None:
                self._end(left_out, Busy("too many grammars wait to be compiled; try again in a moment."), "busy")
        return ticket

    def forget(self, ticket: Ticket) -> None:
        """Note that a request no longer waits; a grammar that no request waits for is not compiled."""
        for job in self._queue.take(lambda job: job.tickets == [ticket]):
            del self._jobs[job.key]

    def wait(self, ticket: Ticket) -> GrammarChild:
        """Wait until a compilation has ended; returns its process or raises its error."""
        while not ticket.done:
            self.poll(0.1)
        return ticket.process()

    @property
    def bytes(self) -> int:
        """Memory of all compiled grammars."""
        return sum(process.bytes for process in self._ready.values())

    def poll(self, seconds: float = 0.0) -> None:
        """Advance compilations; waits at most so long for one to report."""
        if not self._jobs:
            return
        self._serve_start()
        self._hear()
        self._late()
        self._begin()
        lines = [job.process.link.socket for job in self._compiling if job.process is not None]
        if seconds:
            select.select(
                [*(server.control for server in self._servers), *lines],
                [],
                [],
                seconds if self._servers else min(seconds, 0.01),
            )
        for job in list(self._compiling):
            self._look(job)

    # --- the fork server ---------------------------------------------------------------------------------------------

    def _serve_start(self) -> None:
        """Start a fork server for the first job, in a thread: serializing a large vocabulary takes a moment."""
        if self._servers or not self._jobs:
            return
        if self._launch is None:
            self._launch = threading.Thread(target=self._launching, daemon=True)
            self._launch.start()
        elif self._launched:
            self._launch, made = None, self._launched.pop()
            if isinstance(made, ForkServerClient):
                self._servers.append(made)
            else:
                self._end_all(made)

    def _launching(self) -> None:
        try:
            self._launched.append(ForkServerClient({**self._vocabulary(), "limits": self.limits}))
        except Exception as error:
            self._launched.append(error)

    def _hear(self) -> None:
        for server in self._servers:
            try:
                server.hear()
                self._unstarted = 0 if server.ready else self._unstarted
            except Gone:
                self._unstarted += 1
                self._close_server()
                if self._unstarted >= TRIES:
                    self._end_all(RuntimeError("the fork server for grammars does not start."))
            except ConfigError as error:
                self._close_server()
                self._end_all(error)
            return

    def _close_server(self) -> None:
        self._servers.pop().close()

    def _end_all(self, error: Exception) -> None:
        for job in list(self._jobs.values()):
            self._end(job, error, "crash")
        self._queue.take(lambda job: True)

    # --- compiling ---------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        if not self._servers or not self._servers[0].ready:
            return
        while len(self._compiling) < AT_ONCE:
            large = any(job.source.large for job in self._compiling)
            job = self._queue.pop(lambda job: not (large and job.source.large))  # noqa: B023 (called at once)
            if job is None:
                return
            if not self._room():
                self._end(job, Busy("too many grammars are in use; try again in a moment."), "busy")
                continue
            if not self._sent(job):
                return

    def _sent(self, job: GrammarJob) -> bool:
        """Give a job a process; false if there is no fork server any more."""
        try:
            job.process = GrammarChild(job.source, *self._servers[0].fork())
        except Gone:
            self._queue.push_front(job.client, job)
            return False
        job.begun = time.monotonic()
        self._compiling.append(job)
        try:
            job.process.send(compile=job.source)
        except Gone:
            self._lost(job)
        return True

    def _look(self, job: GrammarJob) -> None:
        """Check on a compilation: it may have succeeded, failed, or run out of time."""
        assert job.process is not None
        try:
            found = job.process.link.poll()
        except Gone:
            self._lost(job)
            return
        if found is None:
            if time.monotonic() - job.begun > WALL_SECONDS and self._servers:
                self._servers[0].kill(job.process.number)
            return
        message, mask = found
        self._compiling.remove(job)
        if "error" in message:
            job.process.link.close()
            self._refuse(job, message["error"], "invalid")
            return
        job.process.mask = mask
        job.process.measure(message["bytes"])
        job.process.promised = time.monotonic() + PROMISE_SECONDS
        self._ready[job.key] = job.process
        self._end(job, job.process, "compiled")
        self._evict()

    def _lost(self, job: GrammarJob) -> None:
        """Handle the end of a compilation's process: refuse a grammar that broke a limit, else compile it again."""
        assert job.process is not None
        self._compiling.remove(job)
        job.process.link.close()
        status = self._servers[0].status(job.process.number) if self._servers else None
        why, job.process = self.limits.broken(status, compiling=True), None
        if why is not None:
            self._refuse(job, why, outcome(status))
            return
        job.tries += 1
        if job.tries >= TRIES:
            self._end(job, Busy("the system ended the process that compiled this grammar; try again."), "crash")
            return
        self.counts["retried"] += 1
        job.queued = time.monotonic()
        self._queue.push_front(job.client, job)

    def _refuse(self, job: GrammarJob, why: str, kind: str) -> None:
        error = ConfigError(f"structured_outputs.{job.source.kind} cannot be used: {why}")
        self._refused[job.key] = Refusal(error, time.monotonic() + REFUSED_SECONDS)
        self._refused.move_to_end(job.key)
        while len(self._refused) > REFUSALS:
            self._refused.popitem(last=False)
        self._end(job, error, kind)

    def _late(self) -> None:
        """Refuse requests that have waited too long for their turn; clients may try again."""
        oldest = time.monotonic() - WAIT_SECONDS
        for job in self._queue.take(lambda job: job.queued < oldest):
            self._end(job, Busy("others' grammars are being compiled; try again in a moment."), "busy")

    def _end(self, job: GrammarJob, result: GrammarChild | Exception, kind: str) -> None:
        self.counts[kind] += 1
        del self._jobs[job.key]
        job.end(result)

    # --- keeping -----------------------------------------------------------------------------------------------------

    def _kept(self, key: str) -> GrammarChild | None:
        """The process of a source that was compiled before, if it is still alive."""
        process = self._ready.get(key)
        if process is None:
            return None
        try:
            process.link.poll()
        except Gone:
            del self._ready[key]
            process.link.close()
            return None
        process.promised = time.monotonic() + PROMISE_SECONDS
        self._ready.move_to_end(key)
        return process

    def _room(self) -> bool:
        if len(self._ready) >= LIVE or self.bytes > LIVE_BYTES:
            self._evict(one=True)
        return len(self._ready) < LIVE and self.bytes <= LIVE_BYTES

    def _evict(self, one: bool = False) -> None:
        """End the processes that were idle for longest, down to KEPT_BYTES; with `one`, at least one of them."""
        now = time.monotonic()
        idle = [key for key, process in self._ready.items() if process.live == 0 and process.promised < now]
        held = sum(self._ready[key].bytes for key in idle)
        for key in idle:
            if held <= KEPT_BYTES and not one:
                return
            one = False
            process = self._ready.pop(key)
            held -= process.bytes
            process.link.close()

    def lost(self, process: GrammarChild) -> str:
        """Note that a process has ended while requests used it, and return why."""
        self._ready.pop(process.source.key, None)
        process.link.close()
        self.counts["stopped"] += 1
        if self._servers:
            self._servers[0].kill(process.number)  # it may be alive and not answer
        status = self._servers[0].status(process.number) if self._servers else None
        return self.limits.broken(status, compiling=False) or "the process that held it was ended; ask again."


def _close(servers: list[ForkServerClient]) -> None:
    while servers:
        servers.pop().close()
