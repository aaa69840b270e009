"""What one grammar may cost. Its process enforces these; the engine is told how it ended and says so to the client."""

from __future__ import annotations

import signal

COMPILE_SECONDS = 5.0  # of processor time, before its first mask
BURST_SECONDS = 0.5  # of processor time that masks may be behind by
TOKEN_SECONDS = 0.005  # of processor time that every token read and every mask adds to what is left
DRAFT_SECONDS = 0.02  # after which the rest of a draft is dropped: it decides how fast a text comes, never what it is
STACK_BYTES = 256 << 20
MEMORY_BYTES = 512 << 20
SILENCE_SECONDS = 20.0  # of anyone's time: the process is stopped, or the machine is too busy to run it
MESSAGE = 500  # characters of the library's own words


def ended_by(status: int | None, compiling: bool) -> str | None:
    """What a process that ended with this wait status died of, for the client; None where it was not its own doing."""
    if status is None or (number := status & 0x7F) == signal.SIGKILL:
        return None
    if number == signal.SIGPROF and compiling:
        return f"it takes more than {COMPILE_SECONDS:g} seconds to compile; ask for a simpler one."
    if number == signal.SIGPROF:
        return f"its masks take more than {1000 * TOKEN_SECONDS:g} ms each; ask for a simpler or less ambiguous one."
    if number in (signal.SIGSEGV, signal.SIGBUS):
        return f"it nests too deep: more than {STACK_BYTES >> 20} MiB of stack."
    if number == signal.SIGABRT:
        return f"it needs more than {MEMORY_BYTES >> 20} MiB of memory."
    return f"its parser failed (signal {number})." if number else f"its parser failed (exit code {status >> 8})."


def kind_of_end(status: int | None) -> str:
    """The same as a metric's label."""
    names = {signal.SIGPROF: "time", signal.SIGSEGV: "stack", signal.SIGBUS: "stack", signal.SIGABRT: "memory"}
    return names.get((status or 0) & 0x7F, "crash")  # type: ignore[call-overload,no-any-return]
