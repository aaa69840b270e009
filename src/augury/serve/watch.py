"""Watches for an engine process that falls silent: logs it once, waits, and kills the process if it stays so."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from pathlib import Path

logger = logging.getLogger("augury")
SILENCE = 10.0  # seconds without a sign of life after which the engine counts as stuck
STUCK = 60.0  # and after which it is killed and started again, if it does nothing meanwhile
LOST = 600.0  # the same for one that still uses a processor: a step of a large model on a slow machine may take minutes
GLANCE = 1.0  # seconds between two checks
IDLE = 0.05  # seconds of processor time in one second that count as doing nothing


class Watch:
    """Checks one engine process once a second.

    After SILENCE seconds without a message it logs one line (the client then refuses new requests). After STUCK seconds
    in which the process did nothing, or LOST seconds whatever it did, `kill` is called. An engine that is heard from
    before that simply continues. Seconds are counted in checks, not by the clock: a server that was itself stopped for
    an hour has not waited for an hour.
    """

    def __init__(self, healthy: Callable[[], bool], pid: Callable[[], int | None], kill: Callable[[], None]) -> None:
        self._healthy, self._pid, self._kill = healthy, pid, kill
        self._silent = 0.0  # seconds, as far as we have checked
        self._still = 0.0  # those in which it did nothing
        self._used = 0.0  # processor time at the last check

    async def run(self) -> None:
        """Check until cancelled."""
        while True:
            await asyncio.sleep(GLANCE)
            self.look()

    def look(self) -> None:
        """Check once; `pid` gives None while there is no engine to hear from."""
        pid = self._pid()
        if pid is None or self._healthy():
            if self._silent and pid is not None:
                logger.info("the engine is heard from again.")
            self._silent = self._still = 0.0
            return
        used = processor_seconds(pid)
        if not self._silent:
            logger.error("the engine has said nothing for %g seconds; new requests are refused.", SILENCE)
            self._silent = self._still = SILENCE
        else:
            self._silent += GLANCE
            self._still = self._still + GLANCE if used - self._used < IDLE * GLANCE else 0.0
        self._used = used
        if self._still >= STUCK or self._silent >= LOST:
            logger.error("the engine is stuck (silent for %g seconds); it is killed and started again.", self._silent)
            self._silent = self._still = 0.0
            self._kill()


def processor_seconds(pid: int) -> float:
    """Processor time that a process has used so far; 0 where the system does not tell."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
