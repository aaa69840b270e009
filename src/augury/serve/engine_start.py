"""Starting the engine process: a socket pair, the message that says what to load, and what it answers."""

from __future__ import annotations

import asyncio
import socket
import sys
from asyncio.subprocess import Process
from typing import NamedTuple

from augury.serve.wire import Closed, Message, pack, read

# Collections of garbage would look at all that is imported again and again: an eighth of the time until it is ready.
ENGINE = ("-c", "import gc; gc.disable(); from augury.serve.engine_process import start; start()")


class EngineFailed(Exception):
    """The engine could not be started; the message is for the user."""


class Started(NamedTuple):
    """A process that is ready, and the ways to talk to it."""

    process: Process
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    facts: Message


async def start_engine(start: Message) -> Started:
    """Start a process and wait until it is ready; nothing of it is left where that fails."""
    ours, theirs = socket.socketpair()
    process: Process | None = None
    writer: asyncio.StreamWriter | None = None
    try:
        with theirs:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *ENGINE,
                str(theirs.fileno()),
                pass_fds=[theirs.fileno()],
                stdin=asyncio.subprocess.DEVNULL,
                start_new_session=True,
            )
        reader, writer = await asyncio.open_connection(sock=ours)
        return Started(process, reader, writer, await _greet(process, reader, writer, start))
    except BaseException:  # also where the server is told to end while the model loads
        (writer or ours).close()
        if process is not None and process.returncode is None:
            process.kill()
        raise


async def _greet(
    process: Process, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, start: Message
) -> Message:
    """Tell a new process what to load, and wait for what it has to say of it."""
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
