"""Processes that judge objects; one that exceeds the time limit is killed, whatever it is doing."""

from __future__ import annotations

import multiprocessing
import queue
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from augury.config.errors import ConfigError
from augury.tools.doctor.webhook.judge import AdmissionCase, ToldFinding, judge

MEMORY = 2 << 30  # bytes of memory a process may use; the doctor itself uses about 100 MB
START = 60.0  # seconds a process has to import what it needs
SAMPLE = AdmissionCase('{"spec": {"containers": [{"image": "vllm/vllm-openai", "args": ["--model", "m"]}]}}')


class NotJudged(Exception):
    """An object could not be judged; says why."""


def _work(pipe: Connection) -> None:
    """Answer cases until the pipe is closed."""
    _limit_memory()
    judge(SAMPLE)  # loads the knowledge now, so that the first request does not wait for it
    pipe.send([])
    while True:
        try:
            case = pipe.recv()
        except (EOFError, KeyboardInterrupt):
            return
        pipe.send(_answer(case))


def _answer(case: AdmissionCase) -> list[ToldFinding] | str:
    try:
        return judge(case)
    except ConfigError as error:
        return str(error)
    except MemoryError:
        return "it takes too much memory to read."
    except Exception as error:  # every object gets an answer, whatever it holds
        return f"the doctor failed on it ({type(error).__name__}); please report it."


def _limit_memory() -> None:
    if sys.platform.startswith("linux"):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


class JudgeProcess:
    """One process and the pipe to it."""

    def __init__(self, work: Callable[[Connection], None] = _work) -> None:
        """Start the process, which sends an empty answer once it is ready."""
        context = multiprocessing.get_context("spawn")  # a fork would copy the threads' locks
        self.work = work
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=work, args=(other,), daemon=True)
        self.process.start()
        other.close()
        self.ready = False
        self.until = time.monotonic() + START  # it must be ready by then

    def wait(self, until: float) -> bool:
        """Wait until then at the latest and return whether the process is ready."""
        if not self.ready and self.pipe.poll(max(0.0, until - time.monotonic())):
            self.pipe.recv()
            self.ready = True
        return self.ready

    def ask(self, case: AdmissionCase, until: float) -> Any:
        """Its answer; TimeoutError if late, NotJudged if it is still starting, EOFError or OSError if it died."""
        if not self.wait(until):
            if time.monotonic() < self.until:
                raise NotJudged("the process that would check it is still starting.")
            raise TimeoutError
        self.pipe.send(case)
        if not self.pipe.poll(max(0.0, until - time.monotonic())):
            raise TimeoutError
        return self.pipe.recv()

    def end(self) -> None:
        """Kill the process."""
        self.process.kill()
        self.process.join()
        self.pipe.close()


class Workers:
    """A pool of judging processes, each of which handles one object at a time."""

    def __init__(self, number: int, seconds: float, work: Callable[[Connection], None] = _work) -> None:
        """Start all the processes."""
        self.number, self.seconds, self.work = number, seconds, work
        self.idle: queue.Queue[JudgeProcess] = queue.Queue()
        self.all = [JudgeProcess(work) for _ in range(number)]
        for worker in self.all:
            self.idle.put(worker)

    def wait(self) -> None:
        """Wait until all are ready; a ConfigError if one is not."""
        until = time.monotonic() + START
        try:
            ready = all(worker.wait(until) for worker in self.all)
        except (EOFError, OSError):
            ready = False
        if not ready:
            raise ConfigError("a process that judges objects did not start; run `augury doctor` alone to see why.")

    def judge(self, case: AdmissionCase, until: float | None = None) -> list[ToldFinding]:
        """The findings on an object; NotJudged if it is too slow, needs too much memory, or cannot be read."""
        until = time.monotonic() + self.seconds if until is None else until
        try:
            worker = self.idle.get(timeout=max(0.0, until - time.monotonic()))
        except queue.Empty:
            raise NotJudged(f"no process was free within {self.seconds:g} s.") from None
        try:
            found = worker.ask(case, until)
        except (TimeoutError, EOFError, OSError) as error:
            worker = self._replaced(worker)
            why = f"it took more than {self.seconds:g} s" if isinstance(error, TimeoutError) else "its process ended"
            raise NotJudged(f"{why}.") from None
        finally:
            self.idle.put(worker)
        if isinstance(found, str):
            raise NotJudged(found)
        return [ToldFinding(*one) for one in found]

    def _replaced(self, worker: JudgeProcess) -> JudgeProcess:
        worker.end()
        new = JudgeProcess(self.work)
        self.all[self.all.index(worker)] = new
        return new

    def close(self) -> None:
        """End all of them."""
        for worker in self.all:
            worker.end()
