"""Servers that start with their imports done: each is a fork of a process that has imported everything once.

A server of the toy reads torch, transformers and augury, and so does its engine: most of the processor seconds that a
start takes. A fork is a process of its own all the same, with its own memory, descriptors and signals, and the Popen
that started it is its parent; the same program runs in it. Not for tests of what a fresh process imports or holds.

    Popen here  ->  nursery, one for each pytest process: forks
                      `-> server: forked twice, so that it becomes a child of this process
                            `-> spare: its child from the start; becomes the server's first engine

An engine that has died is followed by one that is started in the ordinary way.
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import gc
import inspect
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from itertools import pairwise
from typing import Any

READ_ON_IMPORT = ("PYTHON", "OMP", "MKL", "OPENBLAS", "NUMBA", "TORCH", "TRITON", "HF_", "TRANSFORMERS", "CUDA", "LD_")
IMPORTED = ("augury.cli", "augury.serve.server", "augury.serve.engine_process")
SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER: orphans below become children of this process
LONGEST = 1 << 20  # bytes of a message
PIPES = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
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


class Nursery:
    """This side of the process that forks servers."""

    def __init__(self) -> None:
        self._env = dict(os.environ)
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, __file__, str(theirs.fileno())]
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
            if child := os.fork():
                os.write(write, str(child).encode())
                os._exit(0)  # its child goes to the subreaper
            program = become(json.loads(message), fds)
            return with_engine() or program
        os.waitpid(between, 0)
        control.send(os.read(read, 64))
        for fd in (read, write, *fds):
            os.close(fd)


def with_engine() -> str:
    """In a server that has not begun: fork its first engine, which waits for its order. There, returns its program."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if pid := os.fork():
        theirs.close()
        _first_engine(pid, ours)
        return ""
    ours.close()
    message, fds, _, _ = socket.recv_fds(theirs, LONGEST, 16)
    if not message:  # the server has ended without
        os._exit(0)
    return become(json.loads(message), fds)


def _first_engine(pid: int, control: socket.socket) -> None:
    """Let the first engine that is started be this process; everything else is started in the ordinary way."""

    def start(order: Order, fds: list[int]) -> int:
        subprocess.Popen = ordinary  # type: ignore[misc]
        with control:
            socket.send_fds(control, [json.dumps(order).encode()], fds)
        return pid

    def chosen(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        if any("engine_process" in word for word in command):
            return Forked(command, source=start, **options)
        return ordinary(command, **options)

    ordinary = subprocess.Popen
    subprocess.Popen = chosen  # type: ignore[misc, assignment]


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
    sys.path[0] = ""  # as with -c: names of this folder hide nobody's
    for name in IMPORTED:
        import_module(name)
    _prepare_numba()
    gc.collect()
    gc.freeze()  # or collections would copy what all have in common
    exec(nurse(socket.socket(fileno=int(sys.argv[1]))), {"__name__": "__main__"})


if __name__ == "__main__":
    main()
