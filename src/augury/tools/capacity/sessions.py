"""Recorded conversations as load: turns with their lengths, and what a session shares with others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple

import numpy as np

from augury.tools.replay.tokens import Script

BLOCK = 16  # tokens: vLLM's block size, the unit of its prefix cache


class Turn(NamedTuple):
    """One request of a session, in tokens; its prompt includes all earlier turns."""

    prompt: int
    answer: int


@dataclass(frozen=True, slots=True)
class SessionShape:
    """A conversation reduced to its token counts."""

    turns: tuple[Turn, ...]
    head: int  # leading tokens shared with other sessions, in whole blocks
    beginning: bytes  # digest of those tokens

    def unread(self, number: int) -> int:
        """Tokens of a turn's prompt left to prefill if everything before it is cached."""
        kept = self.head if number == 0 else sum(self.turns[number - 1])
        prompt = self.turns[number].prompt
        return prompt - min(kept, prompt - 1) // BLOCK * BLOCK


def sessions_of(scripts: Iterable[Script]) -> list[SessionShape]:
    """The sessions of a trace; a record that another one continues counts as part of that one."""
    read = [script for script in scripts if script.spans]
    ends = [_digests(script.text, [stop for _, stop in script.spans]) for script in read]
    inner = {(script.tenant, digest) for script, mine in zip(read, ends, strict=True) for digest in mine[:-1]}
    whole = [script for script, mine in zip(read, ends, strict=True) if (script.tenant, mine[-1]) not in inner]
    begins = [_beginning(script) for script in whole]
    seen = Counter((script.tenant, digest) for script, mine in zip(whole, begins, strict=True) for digest in mine)
    return [_session(script, mine, seen) for script, mine in zip(whole, begins, strict=True)]


def _session(script: Script, blocks: list[bytes], seen: Counter[tuple[str, bytes]]) -> SessionShape:
    shared = next((n for n, block in enumerate(blocks) if seen[script.tenant, block] < 2), len(blocks))
    turns = tuple(Turn(start, stop - start) for start, stop in script.spans)
    return SessionShape(turns, shared * BLOCK, blocks[shared - 1] if shared else b"")


def _beginning(script: Script) -> list[bytes]:
    """Digests of the first prompt, block by block, without its last token, which is always computed."""
    first = script.spans[0][0]
    return _digests(script.text, list(range(BLOCK, first, BLOCK)))


def _digests(text: np.ndarray, ends: list[int]) -> list[bytes]:
    running, start, found = blake2b(digest_size=16), 0, []
    for end in ends:
        running.update(np.ascontiguousarray(text[start:end]).tobytes())
        start = end
        found.append(running.copy().digest())
    return found
