"""What a speculation method is, said without importing torch."""

from __future__ import annotations

from dataclasses import dataclass

MAX_NODES = 63  # the largest draft: the ancestors of a node fit the bits of one int64


@dataclass(frozen=True, slots=True)
class Method:
    """A method's card: its name, what it does, and where its drafter lives."""

    name: str
    help: str  # one sentence for tables and errors
    drafter: str  # "package.module:Class", imported only when the engine builds it
    keys: tuple[str, ...]  # the speculative_config keys that only this method reads
