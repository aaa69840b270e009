"""Starting the engine process: a socket pair, the message that says what to load, and what it answers."""

from __future__ import annotations

import asyncio
import atexit
import socket
import subprocess
import sys
from importlib.util import find_spec
from typing import NamedTuple

from augury.serve.wire import Closed, Message, pack, read

# Garbage collection would scan all that is imported again and again: an eighth of the time until it is ready.
ENGINE = (
    "-c",
    "import gc; gc.disable(); from augury.kernels.lean_torch import import_lean; import_lean(); "
    "from augury.serve.engine_process import start; start()",
)


class EngineFailed(Exception):
    """The engine could not be started; the message is for the user."""


class Process:
    """An engine process, and our end of the socket pair."""

    def __init__(self) -> None:
        self.socket, theirs = socket.socketpair()
        try:
            with theirs:
                self._child = subprocess.Popen(
                    [sys.executable, *ENGINE, str(theirs.fileno())],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,
                )
        except BaseException:
            self.socket.close()
            raise
        self.pid = self._child.pid

    @property
    def returncode(self) -> int | None:
        """The exit code; None while it runs."""
        return self._child.poll()

    async def wait(self) -> int:
        """Wait until it ends; returns the exit code."""
        return await asyncio.to_thread(self._child.wait)

    def kill(self) -> None:
        """Kill the process."""
        self._child.kill()


_ahead: list[Process] = []  # started before it was known what to load


def start_ahead() -> None:
    """Start a process that imports the engine while the server is still being put together."""
    if find_spec("torch") is not None:
        _ahead.append(Process())
        atexit.register(end_ahead)


def end_ahead() -> None:
    """Kill the process started ahead if it is still unused: the server is another one, or could not be made."""
    while _ahead:
        _ahead.pop().kill()


class Started(NamedTuple):
    """A process that is ready, and the ways to talk to it."""

    process: Process
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    facts: Message


async def start_engine(start: Message) -> Started:
    """Start a process and wait until it is ready; if that fails, nothing of it is left."""
    process = _ahead.pop() if _ahead else Process()
    writer: asyncio.StreamWriter | None = None
    try:
        reader, writer = await asyncio.open_connection(sock=process.socket)
        return Started(process, reader, writer, await _greet(process, reader, writer, start))
    except BaseException:  # also if the server is stopped while the model loads
        (writer or process.socket).close()
        if process.returncode is None:
            process.kill()
        raise


async def _greet(
    process: Process, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, start: Message
) -> Message:
    """Tell a new process what to load, and wait for its facts; raises EngineFailed."""
    writer.write(pack(start))
    try:
        answer = await read(reader)
    except Closed:
        code = await process.wait()
        raise EngineFailed(f"the engine process ended while it loaded the model ({ending(code)}).") from None
    if answer["type"] == "failed":
        await process.wait()
        raise EngineFailed(answer["message"])
    facts: Message = answer["facts"]
    return facts


def ending(code: int) -> str:
    """How a process ended."""
    return f"signal {-code}" if code < 0 else f"exit code {code}"
