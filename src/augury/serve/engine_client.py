"""The server's side of the engine process: start it, talk to it, start it again when it dies or hangs."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any

from augury.serve.backlog import Backlog
from augury.serve.controls import Controls
from augury.serve.costs import Scores
from augury.serve.engine_start import EngineFailed, Process, ending, start_engine
from augury.serve.errors import ApiError
from augury.serve.figures import SafeEar
from augury.serve.jobs import ANSWERS, Batch, Ear, Job, check_room, failure
from augury.serve.shares import Shares
from augury.serve.watch import SILENCE, Watch
from augury.serve.wire import Closed, Message, pack, pack_aside, read

logger = logging.getLogger("augury")
DEATHS, WITHIN = 3, 60.0  # this many deaths in so many seconds end the server
FIRST_WAIT, LONGEST_WAIT = 0.25, 8.0  # seconds before the first restart; they double with each failure, up to this
STARTS = 8  # starts in a row that may fail for reasons other than the engine's before the server ends
FAREWELL = 10.0  # seconds that a process may take to end once it has closed its side


class EngineClient:
    """One engine process, and the jobs it works on."""

    def __init__(
        self,
        model: str,
        arguments: dict[str, Any],
        ear: Ear,
        give_up: Callable[[str], None],
        keys: int = 1,
        collect: Message | None = None,
        loras: dict[str, str] | None = None,
    ) -> None:
        self.facts: dict[str, Any] = {}
        self.pid = self._waiting = 0  # of the engine; requests that wait there for a slot
        self.start_message: Message = {"type": "start", "model": model, "arguments": arguments}  # also of a restart
        self.start_message |= {"collect": collect, "loras": loras}
        self._controls = Controls()
        self._ear = SafeEar(ear)
        self._backlog, self.scores = Backlog(), Scores(keys=keys)  # what responses hold
        self._shares = Shares(ANSWERS, keys)
        self._give_up = give_up
        self._jobs: dict[int, Job] = {}
        self._numbers, self._heard = 0, 0.0
        self._deaths: deque[float] = deque(maxlen=DEATHS)
        self._unstarted = 0  # attempts to start that failed, one after another
        self._process: Process | None = None
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._keepers: list[asyncio.Task[None]] = []
        self.ready = False  # whether there is an engine to take requests

    @property
    def healthy(self) -> bool:
        """Whether the engine is running and was heard from lately."""
        return self.ready and time.monotonic() - self._heard < SILENCE

    async def start(self) -> None:
        """Start the engine and wait until it is ready; raises EngineFailed."""
        await self._spawn()
        watch = Watch(lambda: self.healthy, lambda: self.pid if self.ready else None, self._kill)
        self._keepers = [asyncio.create_task(self._keep()), asyncio.create_task(watch.run())]
        for keeper in self._keepers:
            keeper.add_done_callback(self._keeper_ended)

    async def stop(self) -> None:
        """End the engine process; one that is still loading its model would not notice, and is killed."""
        loaded, self.ready = self.ready, False
        for keeper in self._keepers:
            keeper.cancel()
        if self._writer is not None:
            self._writer.close()
        if self._process is not None and self._process.returncode is None:
            try:
                await asyncio.wait_for(self._process.wait(), 5 if loaded else 0)
            except TimeoutError:
                self._process.kill()
                await self._process.wait()

    async def submit(
        self, prompts: list[list[int]], params: dict[str, Any], n: int, detailed: bool, client: str = ""
    ) -> Batch:
        """Hand prompts to the engine; returns once all are taken, raises Refused or ApiError if one is not."""
        if self._writer is None or not self.healthy:
            state = f"has said nothing for {SILENCE:g} seconds or more" if self.ready else "is being restarted"
            raise ApiError(503, f"the engine {state}; try again in a moment.", code="engine_unavailable")
        check_room(self._jobs.values(), self._shares, client, len(prompts) * n)
        batch, scored = Batch(n, self._backlog, client), params.get("prompt_logprobs") is not None
        batch.queue.on_overrun = lambda: self.abort(batch)
        turns = [client, str(self._numbers + 1)]  # prompts of one HTTP request share its turns
        try:
            for tokens in prompts:
                self._numbers += 1
                job = batch.add(self._numbers, len(tokens), params.get("max_tokens"), scored)
                self._jobs[job.id] = job
                message = {"type": "add", "id": job.id, "tokens": tokens, "params": params, "detailed": detailed}
                self._writer.write(await pack_aside({**message, "client": turns}))
            await asyncio.gather(*(job.taken for job in batch.jobs))
        except BaseException:
            self.abort(batch)
            raise
        return batch

    async def order(self, order: Message) -> Message:
        """Have the engine do something between two steps; an ApiError says why it cannot."""
        if self._writer is None or not self.healthy:
            raise ApiError(503, "the engine is being restarted; try again in a moment.", code="engine_unavailable")
        return await self._controls.ask(self._writer, order)

    async def swap(self, directory: str | None) -> None:
        """Have the engine draft with another drafter, or with the previous one (None); a restart keeps it."""
        answer = await self.order({"type": "swap", "directory": directory})
        self.start_message = self._controls.swapped(self.start_message, answer["drafter"])
        self.facts["speculative_config"]["model"] = answer["drafter"]

    def abort(self, batch: Batch) -> None:
        """Abort the unfinished jobs of a batch; the engine drops them before its next step."""
        batch.queue.clear()
        for job in batch.jobs:
            if self._jobs.pop(job.id, None) is None:
                continue
            if self._writer is not None and self.ready:
                self._writer.write(pack({"type": "abort", "id": job.id}))
            self._ear.aborted(job, "abort")

    def in_the_way(self, batch: Batch) -> bool:
        """Whether the engine works on this batch while an answer of another waits for a slot."""
        works = any(job.id in self._jobs for job in batch.jobs)
        return works and self._waiting > 0 and any(job.unbegun for job in self._jobs.values() if job.batch is not batch)

    def cut_off(self) -> None:
        """End all running jobs with an error, since the server is shutting down."""
        self._fail_all(ApiError(503, "the server is shutting down.", code="shutting_down"), "abort")

    async def updates(self, batch: Batch) -> AsyncIterator[tuple[int, Message]]:
        """Yield (choice, update) until all answers of a batch have ended; closing the iterator early aborts them."""
        unended = len(batch.jobs) * batch.n
        try:
            while unended:
                choice, update = await batch.queue.get()
                if isinstance(update, ApiError):
                    raise update
                unended -= "end" in update
                yield choice, update
        finally:
            self.abort(batch)

    # --- the process ------------------------------------------------------------------------------------------------

    async def _spawn(self) -> None:
        """Start a process and wait until it is ready."""
        self._process, self._writer = None, None
        self._process, self._reader, self._writer, self.facts = await start_engine(self.start_message)
        self.pid, self._heard, self.ready, self._unstarted = self._process.pid, time.monotonic(), True, 0

    async def _keep(self) -> None:
        """Read the engine's messages; when it dies, fail its jobs and start another."""
        while True:
            await self._listen()
            self.ready = False
            self._mourn(await self._last_words())
            while not self.ready:
                if not await self._revive():
                    return

    def _keeper_ended(self, keeper: asyncio.Task[None]) -> None:
        """End the server when a keeper task fails: it would refuse everything for good, unnoticed by a supervisor."""
        error = None if keeper.cancelled() else keeper.exception()
        if error is None:  # the client was stopped, or has given up already
            return
        self.ready = False
        self._fault("keeper", "the task that keeps the engine has ended", error)
        self._kill()
        self._fail_all(ApiError(503, "the engine died while it worked on this request.", code="engine_died"), "error")
        self._give_up(f"the engine's supervisor failed ({type(error).__name__}: {error}); the server ends.")

    def _fault(self, where: str, what: str, error: BaseException) -> None:
        logger.error("%s", what, exc_info=error)
        self._ear.fault(where)

    async def _listen(self) -> None:
        """Handle messages until there are no more; a process that is not understood is killed like one that hangs."""
        assert self._reader is not None
        try:
            while True:
                message = await read(self._reader)
                self._heard = time.monotonic()
                self._dispatch(message)
        except Closed:
            return
        except Exception as error:
            self._fault("engine", "a message of the engine cannot be handled; it is killed and started again", error)
            self._kill()

    async def _last_words(self) -> str:
        """How the process ended; one that closed its side but keeps running is killed."""
        assert self._process is not None
        try:
            code = await asyncio.wait_for(self._process.wait(), FAREWELL)
        except TimeoutError:
            self._kill()
            code = await self._process.wait()
        return ending(code)

    def _kill(self) -> None:
        """End a process that hangs; `_keep` sees it end and starts another."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()

    def _mourn(self, how: str) -> None:
        self._deaths.append(time.monotonic())
        self._controls.fail()
        if self._writer is not None:
            self._writer.close()
        logger.error("the engine process ended (%s); %d requests were running.", how, len(self._jobs))
        self._fail_all(ApiError(503, "the engine died while it worked on this request.", code="engine_died"), "error")

    def _fail_all(self, error: ApiError, reason: str) -> None:
        jobs, self._jobs = self._jobs, {}
        for job in jobs.values():
            job.fail(error)
            self._ear.aborted(job, reason)

    async def _revive(self) -> bool:
        """One attempt at a restart; false when there is no point in more."""
        recent = [at for at in self._deaths if time.monotonic() - at < WITHIN]
        if len(recent) >= DEATHS:
            self._give_up(f"the engine died {DEATHS} times within {WITHIN:.0f} seconds; the server ends.")
            return False
        await asyncio.sleep(min(LONGEST_WAIT, FIRST_WAIT * 2 ** (len(recent) - 1 + self._unstarted)))
        try:
            await self._spawn()
            logger.info("the engine is back.")
        except EngineFailed as error:
            logger.error("the engine did not come back: %s", error)
            if (first := self._controls.without_swaps()) is None:
                self._deaths.append(time.monotonic())
            else:
                self.start_message = first
                logger.warning("it is started with the drafter of the command line, not the one that was swapped in.")
        except Exception as error:  # a system error, such as no free file descriptor: it may pass
            self._unstarted += 1
            self._fault("start", "the engine could not be started", error)
            if self._unstarted >= STARTS:
                self._give_up(f"the engine could not be started {STARTS} times in a row ({error}); the server ends.")
                return False
        return True

    def _dispatch(self, message: Message) -> None:
        kind = message["type"]
        if kind == "control":
            self._controls.answered(message)
            return
        if kind in ("taken", "refused", "busy", "broken", "scores"):
            if (job := self._jobs.get(message["id"])) is not None:
                self._about(job, message)
            return
        self._waiting = message["load"][1]
        self._ear.heard(message)
        for update in message.get("updates", ()):
            if (job := self._jobs.get(update["id"])) is not None:
                self._update(job, update)

    def _about(self, job: Job, message: Message) -> None:
        if message["type"] == "taken":
            self._ear.taken(job)
            job.accept()
        elif message["type"] == "scores":
            job.score(message["entries"])
        else:
            self._end_early(job, message)

    def _end_early(self, job: Job, message: Message) -> None:
        del self._jobs[job.id]
        if message["type"] == "refused":
            job.refuse(message["message"])
            return
        job.fail(failure(message))
        if message["type"] == "broken":
            logger.error("the engine failed on request %s: %s", job.id, message["message"])
            self._ear.aborted(job, "error")

    def _update(self, job: Job, update: Message) -> None:
        if "end" in update:
            job.ended.add(update["index"])
        self._ear.updated(job, update)
        job.put(update)
        if len(job.ended) == job.n:
            self._jobs.pop(job.id, None)  # it is gone already if its client was cut off
