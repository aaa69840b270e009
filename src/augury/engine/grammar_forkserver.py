"""The fork server: it reads the vocabulary once, then forks a process for each grammar, in a millisecond.

Started by grammar_server.py. It has one thread and no torch, so forking it is safe; when the engine ends, it ends, and
its children with it.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import select
import signal
import socket
import sys
from contextlib import suppress
from typing import Any

from augury.engine.grammar_limits import GrammarLimits
from augury.engine.grammar_process import serve
from augury.engine.grammar_vocabulary import read_vocabulary
from augury.engine.grammar_wire import ENDED, FAILED, FORK, READY, RECORD, Link

PR_SET_PDEATHSIG = 1


class ForkServer:
    """Forks, kills and reaps processes on demand."""

    def __init__(self, control: socket.socket, *given: Any) -> None:
        self._control, self._given = control, given  # `given`: passed to every child
        self._numbers: dict[int, int] = {}  # by process id
        self._wake, waker = socket.socketpair()
        waker.setblocking(False)
        self._waker = waker
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)

    def run(self) -> None:
        """Serve until the engine hangs up."""
        while True:
            ready, _, _ = select.select([self._control, self._wake], [], [])
            if self._wake in ready:
                self._wake.recv(4096)
                self._bury()
            if self._control in ready and not self._obey():
                return

    def _obey(self) -> bool:
        record, descriptors, _, _ = socket.recv_fds(self._control, RECORD.size, 1)
        if len(record) < RECORD.size:
            return False
        word, number, _ = RECORD.unpack(record)
        if word == FORK:
            self._fork(number, descriptors[0])
        else:
            for process in [process for process, given in self._numbers.items() if given == number]:
                os.kill(process, signal.SIGKILL)
        return True

    def _fork(self, number: int, descriptor: int) -> None:
        process = os.fork()
        if process == 0:
            self._live(descriptor)
        os.close(descriptor)
        self._numbers[process] = number

    def _live(self, descriptor: int) -> None:
        """Run a child process to its end."""
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            die_with_parent()
            for end in (self._control, self._wake, self._waker):
                end.close()
            serve(Link(socket.socket(fileno=descriptor)), *self._given)
            code = 0
        finally:
            os._exit(code)

    def _bury(self) -> None:
        """Report the exit states of ended children."""
        for process in list(self._numbers):
            done, status = os.waitpid(process, os.WNOHANG)
            if done:
                self._control.sendall(RECORD.pack(ENDED, self._numbers.pop(process), status))


def die_with_parent() -> None:
    """Have the kernel kill this process when the fork server ends, busy or not."""
    with suppress(OSError, AttributeError):  # Linux only; elsewhere a child ends when it next reads
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def main(descriptor: int, vocabulary: int) -> int:
    """Read the vocabulary, report that it is ready, and serve."""
    control = socket.socket(fileno=descriptor)
    with os.fdopen(vocabulary) as file:
        given = json.load(file)
    try:
        read = read_vocabulary(given["tokenizer"], given["n_vocab"], given["ends"])
    except ValueError as error:
        words = " ".join(str(error).split())[:500].encode()
        control.sendall(RECORD.pack(FAILED, 0, len(words)) + words)
        return 1
    rest = given["width"], GrammarLimits(*given["limits"])
    del given
    gc.freeze()  # what is never collected is never written to, and stays shared with the children
    with suppress(ConnectionError):
        control.sendall(RECORD.pack(READY, 0, 0))
        ForkServer(control, read, *rest).run()
    return 0


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM):  # sent to all processes, they are for the engine to handle
        signal.signal(number, signal.SIG_IGN)
    os._exit(main(int(sys.argv[1]), int(sys.argv[2])))
