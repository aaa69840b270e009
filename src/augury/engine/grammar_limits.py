"""What one grammar may cost. Its process enforces this; the engine sees how it ended and tells the client."""

from __future__ import annotations

import signal
from typing import NamedTuple

SILENCE_SECONDS = 20.0  # of wall time: the process is stopped, or the machine is too busy to run it
MESSAGE = 500  # characters kept of the library's own messages
KINDS = {signal.SIGPROF: "time", signal.SIGSEGV: "stack", signal.SIGBUS: "stack", signal.SIGABRT: "memory"}


class GrammarLimits(NamedTuple):
    """Limits of one grammar; in processor seconds, so that a busy machine refuses nothing that an idle one accepts."""

    compile_seconds: float = 5.0  # before its first mask
    burst_seconds: float = 0.5  # that masks may be late by
    token_seconds: float = 0.005  # that every token read and every mask adds to the time left
    draft_seconds: float = 0.02  # after which the rest of a draft is dropped: that affects the speed, not the text
    stack_bytes: int = 256 << 20
    memory_bytes: int = 512 << 20

    def share(self, processes: int, cores: int) -> float:
        """How late each of so many grammars may be in a step: together they delay it no longer than one would."""
        return max(self.burst_seconds / 10, min(self.burst_seconds, self.burst_seconds * cores / processes))

    def broken(self, status: int | None, compiling: bool) -> str | None:
        """The limit that a process broke, by its wait status, as a message; None if its end was not its own fault."""
        if status is None or (number := status & 0x7F) == signal.SIGKILL:
            return None
        kind = outcome(status)
        if kind == "time" and compiling:
            return f"it takes more than {self.compile_seconds:g} seconds to compile; ask for a simpler one."
        if kind == "time":
            each = 1000 * self.token_seconds
            return f"its masks take more than {each:g} ms each; ask for a simpler or less ambiguous one."
        if kind == "stack":
            return f"it nests too deep: more than {self.stack_bytes >> 20} MiB of stack."
        if kind == "memory":
            return f"it needs more than {self.memory_bytes >> 20} MiB of memory."
        return f"its parser failed (signal {number})." if number else f"its parser failed (exit code {status >> 8})."


def outcome(status: int | None) -> str:
    """How a process ended, as a metric's label."""
    number = (status or 0) & 0x7F
    return next((kind for known, kind in KINDS.items() if known == number), "crash")
