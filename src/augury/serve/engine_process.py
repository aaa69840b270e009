"""The engine's own process: take messages, step, send what came of it.

Started by engine_start.py with one end of a socket pair; it ends when the other end does.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections import deque
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

from augury.config.errors import ConfigError
from augury.config.sampling import SamplingParams
from augury.engine.adaptive import draft_whole
from augury.engine.commit import Update
from augury.engine.grammar_jobs import Busy
from augury.engine.llm import LLM
from augury.engine.request import Request
from augury.engine.warm_up import warm_up
from augury.model.errors import ModelError
from augury.parallel.errors import RanksLost
from augury.serve.collecting import Collector
from augury.serve.compiling import Compiled, Compiler
from augury.serve.engine_facts import adapters_in_use, facts
from augury.serve.inbox import Inbox
from augury.serve.orders import KINDS as ORDERS
from augury.serve.orders import Orders, load_adapters
from augury.serve.reports import Report
from augury.serve.wire import Channel, Closed, Message

BEAT = 1.0  # seconds between two heartbeats when there is nothing to do
GLANCE = 0.005  # and between two polls of grammars that are being compiled
SLICE = 0.05  # seconds for new jobs between two steps
FAILURES = 3  # steps in a row that may fail before the process gives up and is started anew
logger = logging.getLogger("augury")


class EngineProcess:
    """Runs the engine for the server."""

    def __init__(self, llm: LLM, channel: Channel, collector: Collector | None = None) -> None:
        self.llm = llm
        self.engine = llm.engine
        self.orders = Orders(llm)
        self.collector = collector
        self.channel = channel
        self.jobs: dict[int, list[Report]] = {}  # by the server's job id: reports of its n answers
        self.reports: dict[Request, Report] = {}
        self.compiler = Compiler(llm.intake)
        self.unstructured: dict[int, tuple[list[Request], bool]] = {}  # jobs that wait for their grammars
        self.inbox = Inbox()  # jobs that are not read yet
        self.leaving: deque[int] = deque()  # jobs whose clients have left, which are still in the engine
        self.spellings: dict[int, list[Any]] = {}  # texts and bytes of tokens, for all reports
        self._counted: dict[str, int] = {}
        self._beat = 0.0
        self._failures = 0  # steps that failed, one after another

    def run(self) -> None:
        """Serve until the server has gone."""
        while True:
            self._take_messages()
            for compiled in self.compiler.finished():
                self._structure(compiled)
            if self.engine.busy:
                self._step()
            elif time.monotonic() - self._beat >= BEAT:
                if self.llm.team is not None:
                    self.llm.team.ranks.check()
                self._send({"type": "beat"})

    def _take_messages(self) -> None:
        """Handle the messages that have come; while requests wait for the next step, for a limited time only."""
        wait = 0 if self.engine.busy or self.inbox or self.leaving else GLANCE if self.compiler.busy else BEAT
        for message in self.channel.take(wait):
            if message["type"] in ORDERS:
                self.channel.send(self.orders.carry_out(message))
            elif message["type"] == "abort":
                self.inbox.discard(message["id"])
                self.leaving.append(message["id"])
            else:
                self.inbox.add(message)
        begun = time.monotonic()
        while self.leaving and time.monotonic() - begun < SLICE:  # first: the sooner, the less work is wasted
            self._drop(self.leaving.popleft())
        begun = time.monotonic()
        while self.inbox and (not self.engine.busy or time.monotonic() - begun < SLICE):
            self._add(self.inbox.pop())

    def _send(self, message: Message) -> None:
        scheduler = self.engine.scheduler
        self._beat = time.monotonic()
        load = [len(scheduler.running), scheduler.num_waiting, scheduler.pool.usage]
        heard = {**message, "load": load, "counts": self._counts()}
        if self.llm.config.enable_lora:
            heard["loras"] = adapters_in_use(scheduler)
        self.channel.send(heard)

    def _counts(self) -> dict[str, int]:
        """How much each counter has grown since the last message; those that have not are left out."""
        stats = self.engine.stats
        now = {
            "prefix_cache_queries": stats.prefix_cache_queries,
            "prefix_cache_hits": stats.prefix_cache_hits,
            "external_prefix_cache_queries": stats.external_prefix_cache_queries,
            "external_prefix_cache_hits": stats.external_prefix_cache_hits,
            "kv_offload_stored_blocks": stats.offloaded_blocks,
            "kv_offload_damaged_blocks": stats.damaged_blocks,
            "num_preemptions": stats.preemptions,
            "generation_tokens": stats.generation_tokens,
            **{f"grammars_{outcome}": count for outcome, count in self.llm.intake.grammar_counts.items()},
        }
        grown = {name: value - self._counted.get(name, 0) for name, value in now.items()}
        self._counted = now
        return {name: value for name, value in grown.items() if value}

    def _step(self) -> None:
        try:
            updates = self.engine.step()
        except Exception as error:
            self._break(error)
            return
        self._failures = 0
        for update in updates:
            if update.error is not None and update.request in self.reports:
                self._fail({self.reports[update.request].job}, update.error)
        self._send_scores()
        sent = [message for update in updates if (message := self._report(update)) is not None]
        for update in updates:
            if update.request.finish_reason and update.request in self.reports:
                self._forget(self.reports.pop(update.request))
                if self.collector is not None:
                    self.collector.keep(update.request)
        if self.engine.last.requests or sent:  # else a forward pass was launched and none has finished
            self._send({"type": "step", "step": asdict(self.engine.last), "updates": sent})

    def _send_scores(self) -> None:
        for request in self.engine.in_step:
            report = self.reports.get(request) if request.scores_prompt else None
            if report is not None and (scores := report.prompt_scores()) is not None:
                self.channel.send(scores)

    def _report(self, update: Update) -> Message | None:
        report = self.reports.get(update.request)
        if report is None:  # another answer to its prompt has failed, and with it the job
            return None
        try:
            return report.update(update)
        except Exception as error:
            self._fail({report.job}, error)
            return None

    def _break(self, error: Exception) -> None:
        """Fail the requests of a failed step, and only those, unless steps fail again and again."""
        if isinstance(error, RanksLost):  # no step succeeds any more
            raise error
        # If one request was alone in the step, the fault may be its own or the engine's: an empty forward pass tells.
        self._failures += len(self.engine.in_step) != 1 or not self._sound()
        jobs = {self.reports[request].job for request in self.engine.in_step if request in self.reports}
        if not jobs or self._failures > FAILURES:
            logger.error("the engine cannot continue; jobs in its last step: %s", sorted(jobs))
            raise error
        self._fail(jobs, error)

    def _sound(self) -> bool:
        """Whether the engine can still run a forward pass, one of padding only."""
        try:
            warm_up(self.engine.runner, (1,))
            self.engine.state.limit.tolist()  # a GPU reports its errors when it is waited for
        except Exception:
            return False
        return True

    def _fail(self, jobs: set[int], error: Exception) -> None:
        """Drop jobs from the engine and tell the server why."""
        logger.error("jobs %s failed in the engine", sorted(jobs), exc_info=error)
        for job in jobs:
            self._drop(job)
            self.channel.send({"type": "broken", "id": job, "message": f"{type(error).__name__}: {error}"[:300]})

    def _forget(self, report: Report) -> None:
        rest = [r for r in self.jobs.get(report.job, []) if r is not report]
        if rest:
            self.jobs[report.job] = rest
        else:
            self.jobs.pop(report.job, None)

    def _drop(self, job: int) -> None:
        self.inbox.discard(job)
        self.compiler.forget(job)
        self.unstructured.pop(job, None)
        for report in self.jobs.pop(job, []):
            self.reports.pop(report.request, None)
            self.engine.abort(report.request)

    def _add(self, message: Message) -> None:
        job, detailed = message["id"], message["detailed"]
        try:
            asked = SamplingParams(**message["params"])
            name = (asked.extra_args or {}).get("lora")
            lora = self.llm.loras.find(name) if name is not None and self.llm.loras is not None else None
            requests = self.llm.intake.unstructured(str(job), message["tokens"], asked, lora)
            for request in requests:
                key, name = message["client"]
                request.client = key, name
        except Exception as error:
            self._refuse(job, error)
            return
        if asked.structured_outputs is None:
            self._take(job, requests, detailed)
        else:
            self.unstructured[job] = (requests, detailed)
            self.compiler.submit(job, asked, requests[0].client[0] or requests[0].tenant)  # turns are by key

    def _structure(self, compiled: Compiled) -> None:
        """Run a job whose grammar has been compiled, or refuse it if that failed."""
        requests, detailed = self.unstructured.pop(compiled.job)
        if compiled.error is not None:
            self._refuse(compiled.job, compiled.error)
            return
        self.llm.intake.structure(requests, compiled.grammar)
        self._take(compiled.job, requests, detailed)

    def _refuse(self, job: int, error: Exception) -> None:
        if isinstance(error, Busy):
            self.channel.send({"type": "busy", "id": job, "message": str(error)})
            return
        if not isinstance(error, (ValueError, TypeError, OverflowError)):  # ours, not the client's
            self._fail({job}, error)
            return
        self.channel.send({"type": "refused", "id": job, "message": str(error)})

    def _take(self, job: int, requests: list[Request], detailed: bool) -> None:
        self.jobs[job] = [Report(job, request, self.llm, detailed, self.spellings) for request in requests]
        for report in self.jobs[job]:
            self.reports[report.request] = report
            self.engine.add(report.request)
        self.channel.send({"type": "taken", "id": job})


def collector_of(asked: Message | None, target: Path) -> Collector | None:
    """The collector of answers, if one is asked for."""
    return Collector(Path(asked["directory"]), asked["tokens"], target) if asked else None


def freeze() -> None:
    """Exclude what is loaded from garbage collection: each run would scan all of it while every request waits."""
    gc.collect()
    gc.freeze()


def main(descriptor: int) -> int:
    """Load the engine that the first message describes, and run it."""
    logging.basicConfig(format="%(levelname)s %(asctime)s %(message)s", datefmt="%m-%d %H:%M:%S", stream=sys.stderr)
    for number in (signal.SIGINT, signal.SIGTERM):  # for the server, which drains first; some signal every process
        signal.signal(number, signal.SIG_IGN)
    channel = Channel(socket.socket(fileno=descriptor))
    try:
        (start,) = channel.take(None)
        try:
            llm = LLM(start["model"], **start["arguments"])
            collector = collector_of(start.get("collect"), llm.model_path)
            load_adapters(llm, start.get("loras") or {})
            if start.get("whole_drafts"):
                draft_whole(llm.engine)
        except (ConfigError, ModelError, RanksLost, TypeError, OSError, MemoryError) as error:
            channel.send({"type": "failed", "message": " ".join(str(error).split()) or type(error).__name__})
            return 1
        freeze()
        channel.send({"type": "ready", "facts": facts(llm)})
        with closing(llm):
            EngineProcess(llm, channel, collector).run()
    except Closed:
        return 0
    except RanksLost as lost:
        logger.error("%s", lost)
        return 1
    return 0


def start() -> None:
    """Run a process that has imported this with garbage collection off; it is turned on to load the model."""
    gc.freeze()
    gc.enable()
    code = main(int(sys.argv[1]))
    if any(not thread.daemon for thread in threading.enumerate() if thread is not threading.main_thread()):
        # files of hidden states may still be on their way to the disk
        sys.exit(code)
    os._exit(code)  # nothing is left to do, and torch takes a second to shut down
