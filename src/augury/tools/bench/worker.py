"""A process for each contender, idle while the others run.

Engines in one process share OpenMP and memory pools and each other's garbage; in processes of their own they
share only the machine, and a process that waits on its pipe uses no CPU.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from augury.tools.bench import peers
from augury.tools.bench.contenders import Setup
from augury.tools.bench.peers import Ran, Tokens

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


class PeerError(RuntimeError):
    """A contender could not be built or failed."""


class ContenderProcess:
    """The parent's handle of a contender's process."""

    def __init__(self, setup: Setup) -> None:
        self.contender = setup.contender
        context = multiprocessing.get_context("spawn")
        self._pipe, far = context.Pipe()
        self._process = context.Process(target=_serve, args=(setup, far), daemon=True)
        with _environment(setup.threads):
            self._process.start()
        far.close()

    def ready(self) -> None:
        """Wait until the model is loaded."""
        self._receive()

    def run(self, prompts: list[Tokens], max_tokens: int) -> Ran:
        """Have the prompts answered, timed inside the process."""
        before = machine_seconds()
        self._pipe.send((prompts, max_tokens))
        ran, own = self._receive()
        ran.foreign = max(0.0, machine_seconds() - before - own)
        return ran  # type: ignore[no-any-return]

    def close(self) -> None:
        """End the process: an idle one exits as its pipe closes, a busy one is terminated."""
        self._pipe.close()
        self._process.join(1)
        self._process.terminate()
        self._process.join(5)

    def _receive(self) -> Any:
        try:
            answer = self._pipe.recv()
        except EOFError:
            self._process.join(5)
            raise PeerError(f"{self.contender.name} died (exit code {self._process.exitcode})") from None
        if isinstance(answer, str):
            raise PeerError(f"{self.contender.name}: {answer}")
        return answer


def _serve(setup: Setup, pipe: Connection) -> None:
    """Build the contender, then run jobs until the other end of the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle; it ends us
    with tempfile.TemporaryFile() as noise:  # progress bars and warnings of the libraries would garble ours
        os.dup2(noise.fileno(), 1)
        os.dup2(noise.fileno(), 2)
        try:
            peer = getattr(peers, setup.contender.make)(setup)
            pipe.send(None)
            while True:
                prompts, max_tokens = pipe.recv()
                begun = time.process_time()
                ran = peer.run(prompts, max_tokens)
                pipe.send((ran, time.process_time() - begun))
        except EOFError:
            return
        except Exception as error:  # whatever a peer raises is one line of the report
            lines = str(error).strip().splitlines()
            pipe.send(f"{type(error).__name__}: {lines[0] if lines else 'no message'}")


def machine_seconds() -> float:
    """CPU seconds spent by all processes since the machine started; 0 where the system does not report them."""
    try:
        fields = Path("/proc/stat").read_text().split(maxsplit=9)
    except OSError:
        return 0.0
    user, nice, system, _idle, _waiting, interrupts, soft, stolen = map(int, fields[1:9])
    return (user + nice + system + interrupts + soft + stolen) / os.sysconf("SC_CLK_TCK")


@contextmanager
def _environment(threads: int) -> Iterator[None]:
    """Set the thread limits that libraries in child processes read on loading; our OpenMP wait policy is inherited."""
    before = dict(os.environ)
    os.environ.update(dict.fromkeys(THREAD_VARIABLES, str(threads)))
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
