"""What one grammar may cost. Its process enforces this; the engine sees how it ended and says so to the client."""

from __future__ import annotations

import signal
from typing import NamedTuple

SILENCE_SECONDS = 20.0  # of anyone's time: the process is stopped, or the machine is too busy to run it
MESSAGE = 500  # characters of the library's own words
KINDS = {signal.SIGPROF: "time", signal.SIGSEGV: "stack", signal.SIGBUS: "stack", signal.SIGABRT: "memory"}


class GrammarLimits(NamedTuple):
    """Of one grammar; seconds are of processor time, so that a busy machine refuses nothing that an idle one takes."""

    compile_seconds: float = 5.0  # before its first mask
    burst_seconds: float = 0.5  # that masks may be behind by
    token_seconds: float = 0.005  # that every token read and every mask adds to what is left
    draft_seconds: float = (
        0.02  # after which the rest of a draft is dropped: it decides how fast a text comes, not what
    )
    stack_bytes: int = 256 << 20
    memory_bytes: int = 512 << 20

    def share(self, processes: int, cores: int) -> float:
        """How late each grammar may be in a step with so many: together they delay it no longer than one."""
        return max(self.burst_seconds / 10, min(self.burst_seconds, self.burst_seconds * cores / processes))

    def broken(self, status: int | None, compiling: bool) -> str | None:
        """Which of them a process broke that ended with this wait status; None where its end was not its own doing."""
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
