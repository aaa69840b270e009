"""Servers that start with their imports done: each is a fork of a process that has imported everything once.

A server of the toy reads torch, transformers and augury, and so does its engine: most of the processor seconds that a
start takes. A fork is a process of its own all the same, with its own memory, descriptors and signals, and the Popen
that started it is its parent; the same program runs in it. Not for tests of what a fresh process imports or holds.

    Popen here  ->  nursery, one for each pytest process: forks
                      `-> server: forked twice, so that it becomes a child of this process
                            `-> engine: a fork of its server, which has not touched torch
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import gc
import inspect
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

READ_ON_IMPORT = ("PYTHON", "OMP", "MKL", "OPENBLAS", "NUMBA", "TORCH", "TRITON", "HF_", "TRANSFORMERS", "CUDA", "LD_")
IMPORTED = ("augury.cli", "augury.serve.server", "augury.serve.engine_process")
SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER: orphans below become children of this process
LONGEST = 1 << 20  # bytes of a message
PIPES = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
HERE = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import forked; forked.main()"
ORDINARY = subprocess.Popen
Order = dict[str, Any]  # a program, its environment, and the numbers its descriptors shall have


_nursery: Nursery | None = None


def popen(command: list[str], env: dict[str, str], **options: Any) -> subprocess.Popen[bytes]:
    """A `python -c PROGRAM WORDS...` that has its imports done, where its environment allows that."""
    global _nursery
    if not sys.platform.startswith("linux"):
        return subprocess.Popen(command, env=env, **options)
    if _nursery is None or _nursery.process.poll() is not None:
        _nursery = Nursery()
    if not _nursery.suits(env):
        return subprocess.Popen(command, env=env, **options)
    return Forked(command, env=env, source=_nursery.start, **options)


class Forked(subprocess.Popen[bytes]):
    """A Popen whose process is a fork that somebody else provides."""

    def __init__(self, command: list[str], source: Callable[[Order, list[int]], int], **options: Any) -> None:
        self._source = source
        super().__init__(command, **options)

    def _execute_child(self, *given: Any) -> None:
        """In place of fork and exec; by name, since Python's releases differ in the order."""
        names = [name for name in inspect.signature(super()._execute_child).parameters if name != "self"]
        told = dict(zip(names, given, strict=True))
        streams = [told["p2cread"], told["c2pwrite"], told["errwrite"]]
        handed = {number: fd for number, fd in enumerate(streams) if fd != -1}
        handed |= {fd: fd for fd in told["pass_fds"]}
        order: Order = {
            "argv": told["args"][1:],
            "env": dict(os.environ if told["env"] is None else told["env"]),
            "cwd": os.fspath(told["cwd"] or os.getcwd()),
            "session": told["start_new_session"],
            "fds": list(handed),
        }
        self.pid = self._source(order, list(handed.values()))
        self._child_created = True
        self._close_pipe_fds(*(told[end] for end in PIPES))  # type: ignore[attr-defined]


def run(
    command: list[str], env: dict[str, str] | None = None, timeout: float = 120
) -> subprocess.CompletedProcess[str]:
    """subprocess.run() of a program that has its imports done, with what it has written as text."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with popen(command, env=dict(os.environ if env is None else env), **pipes) as process:
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    return subprocess.CompletedProcess(command, process.returncode, out.decode(), err.decode())


@contextmanager
def ranks() -> Iterator[None]:
    """Ranks of an engine that are started here are forks, too; `-P` and PYTHONPATH matter before the imports only."""
    from augury.engine import team

    def start(command: list[str], env: dict[str, str], **options: Any) -> subprocess.Popen[bytes]:
        here = {name: value for name, value in os.environ.items() if name == "PYTHONPATH"}
        env = {name: value for name, value in env.items() if name != "PYTHONPATH"} | here
        return popen([word for word in command if word != "-P"], env, **options)

    team.subprocess = SimpleNamespace(Popen=start, DEVNULL=subprocess.DEVNULL)  # type: ignore[assignment]
    try:
        yield
    finally:
        team.subprocess = subprocess


class Nursery:
    """This side of the process that forks servers."""

    def __init__(self) -> None:
        self._env = dict(os.environ)
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, "-c", HERE, str(theirs.fileno())]
            self.process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        atexit.register(self._end)

    def _end(self) -> None:
        self._control.close()
        self.process.wait()

    def suits(self, env: dict[str, str]) -> bool:
        """Whether nothing that is read on import has changed since."""
        return _read_on_import(env) == _read_on_import(self._env)

    def start(self, order: Order, fds: list[int]) -> int:
        """The process number of a new child of this process."""
        _subreaper(True)
        try:
            socket.send_fds(self._control, [json.dumps(order).encode()], fds)
            return int(self._control.recv(64))
        finally:
            _subreaper(False)  # what tests leave behind is not this process's


def _read_on_import(env: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name.startswith(READ_ON_IMPORT)}


def _subreaper(on: bool) -> None:
    ctypes.CDLL(None).prctl(SUBREAPER, int(on), 0, 0, 0)


# --- in the nursery and its forks -----------------------------------------------------------------------------------


def nurse(control: socket.socket) -> str:
    """Fork a server for every order until the other end closes; returns in a fork, with the program it shall run."""
    while True:
        message, fds, _, _ = socket.recv_fds(control, LONGEST, 16)
        if not message:
            os._exit(0)
        read, write = os.pipe()
        between = os.fork()
        if not between:
            between = os.getpid()
            if child := os.fork():
                os.write(write, str(child).encode())
                os._exit(0)  # its child goes to the subreaper
            while os.getppid() == between:
                time.sleep(0.0005)
            control.detach()  # or it would close whatever has its number by then
            subprocess.Popen = _chosen  # type: ignore[misc, assignment]
            return become(json.loads(message), fds)
        os.waitpid(between, 0)
        control.send(os.read(read, 64))
        for fd in (read, write, *fds):
            os.close(fd)


def _chosen(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
    """In a server: its engine is a fork of it, and everything else is started in the ordinary way."""
    if any("engine_process" in word for word in command):
        return Forked(command, source=_fork_here, **options)
    return ORDINARY(command, **options)


def _fork_here(order: Order, fds: list[int]) -> int:
    """A fork of a server that has its imports done, and nothing of its model; it never returns to the server's code."""
    if pid := os.fork():
        return pid
    code = 1
    try:
        gc.collect()  # now: what the server had open must not be closed later, when its number is the engine's
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        exec(become(order, fds), {"__name__": "__main__"})
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        threading._shutdown()  # type: ignore[attr-defined]
        os._exit(code)


def become(order: Order, fds: list[int]) -> str:
    """Take on what an order says, as a process that has just been started; gives its program."""
    wanted = order["fds"]
    aside = [fcntl.fcntl(fd, fcntl.F_DUPFD, max([2, *wanted, *fds]) + 1) for fd in fds]  # clear of all numbers
    for fd, number in zip(aside, wanted, strict=True):
        os.dup2(fd, number)
    kept = sorted({0, 1, 2, *wanted})
    for below, above in pairwise([*kept, os.sysconf("SC_OPEN_MAX")]):
        os.closerange(below + 1, above)
    if order["session"]:
        os.setsid()
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["env"])
    sys.argv = [order["argv"][0], *order["argv"][2:]]
    import numpy as np

    np.random.seed()  # every fork has the same state; Python's own generator sees to itself
    return str(order["argv"][1])


def _prepare_numba() -> None:
    """What numba does before it loads the first kernel: half a second in which no thread is started."""
    from numba.core.registry import cpu_target

    cpu_target.target_context.refresh()
    cpu_target.typing_context.refresh()


def main() -> None:
    """Import, fork, and run the program of a fork."""
    del sys.path[0]  # names of this folder hide nobody's
    for name in IMPORTED:
        import_module(name)
    _prepare_numba()
    gc.collect()
    gc.freeze()  # or collections would copy what all have in common
    exec(nurse(socket.socket(fileno=int(sys.argv[1]))), {"__name__": "__main__"})
