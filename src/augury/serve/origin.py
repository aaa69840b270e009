"""Where a request came from: its route, the model it names, and the trace it is part of."""

from __future__ import annotations

import re
import secrets
from contextvars import ContextVar
from dataclasses import dataclass

PARENT = re.compile(r"00-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})")  # W3C's traceparent
OPERATIONS = {"/v1/completions": "text_completion"}  # the others are chats


@dataclass(frozen=True, slots=True)
class Origin:
    """What a request says of itself besides its parameters."""

    operation: str
    model: str
    trace: str
    parent: str
    sampled: bool


origin: ContextVar[Origin | None] = ContextVar("origin", default=None)


def note_origin(path: str, model: str, parent: str | None) -> None:
    """Remember, for the jobs that this request becomes, where it came from."""
    found = PARENT.fullmatch(parent or "")
    trace, above = (found[1], found[2]) if found else (secrets.token_hex(16), "")
    sampled = found is None or bool(int(found[3], 16) & 1)  # the originator of the trace decides
    origin.set(Origin(OPERATIONS.get(path, "chat"), model, trace, above, sampled))
