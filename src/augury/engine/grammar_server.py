"""The engine's side of the fork server."""

from __future__ import annotations

import itertools
import json
import os
import select
import socket
import subprocess
import sys
import tempfile
import time
from typing import Any

from augury.config.errors import ConfigError
from augury.engine.grammar_limits import SILENCE_SECONDS
from augury.engine.grammar_wire import ENDED, FAILED, FORK, KILL, READY, RECORD, Gone, Link

PROGRAM = ("-m", "augury.engine.grammar_forkserver")
REMEMBERED = 1024  # exit states not yet read
LAST_WORDS = 5.0  # seconds to wait for the exit state of a process


class ForkServerClient:
    """A fork server that is starting or running."""

    def __init__(self, vocabulary: dict[str, Any]) -> None:
        self.ready = False
        self._numbers = itertools.count(1)
        self._ended: dict[int, int] = {}  # wait statuses by number
        self._held = b""
        self.control, theirs = socket.socketpair()
        with theirs, tempfile.TemporaryFile("w+") as file:  # a file: it is read when Python has started, not before
            json.dump(vocabulary, file)
            file.seek(0)
            given = (theirs.fileno(), file.fileno())
            self.process = subprocess.Popen(
                [sys.executable, *PROGRAM, *map(str, given)],
                pass_fds=given,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
            )

    def fork(self) -> tuple[int, Link]:
        """Fork a new process; returns its number, and the link to it."""
        number = next(self._numbers)
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                socket.send_fds(self.control, [RECORD.pack(FORK, number, 0)], [theirs.fileno()])
            except OSError as error:
                ours.close()
                raise Gone(str(error)) from None
        return number, Link(ours, SILENCE_SECONDS)

    def kill(self, number: int) -> None:
        """End a process that does not answer."""
        try:
            self.control.sendall(RECORD.pack(KILL, number, 0))
        except OSError:  # it has ended with the fork server
            return

    def hear(self, seconds: float = 0.0) -> None:
        """Read the fork server's messages; Gone if it has ended, a ConfigError if it cannot use the vocabulary."""
        while select.select([self.control], [], [], seconds)[0]:
            self._held += self._received()
            while len(self._held) >= RECORD.size:
                word, number, value = RECORD.unpack_from(self._held)
                self._held = self._held[RECORD.size :]
                self.ready |= word == READY
                if word == ENDED:
                    self._ended[number] = value
                    if len(self._ended) > REMEMBERED:
                        del self._ended[next(iter(self._ended))]
                if word == FAILED:
                    why = (self._held + self._received()).decode(errors="replace")
                    raise ConfigError(f"structured_outputs cannot read this model's tokenizer: {why}")
            seconds = 0.0

    def status(self, number: int) -> int | None:
        """The wait status of a process whose connection is closed; None if unknown."""
        limit = time.monotonic() + LAST_WORDS
        try:
            while number not in self._ended and (left := limit - time.monotonic()) > 0:
                self.hear(left)
        except Gone:
            pass
        return self._ended.pop(number, None)

    def close(self) -> None:
        """Hang up, which ends the fork server and its children."""
        self.control.close()
        try:
            self.process.wait(LAST_WORDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _received(self) -> bytes:
        try:
            more = self.control.recv(4096)
        except OSError as error:
            raise Gone(str(error)) from None
        if not more:
            raise Gone("the fork server has ended")
        return more
