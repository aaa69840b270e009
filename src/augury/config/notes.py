"""What was decided on the user's behalf, and why: every inference, translation and disagreement is one note."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["inferred", "translated", "unused", "warning", "unchecked", "vllm"]

LOUD: tuple[Kind, ...] = ("translated", "unused", "warning")  # what a run says aloud, once


@dataclass(frozen=True, slots=True)
class Note:
    """One remark about one key."""

    kind: Kind
    key: str
    text: str
    refused: bool = False  # vLLM would refuse the configuration for this

    def __str__(self) -> str:
        """The line a log shows."""
        return f"{self.key}: {self.text}"


@dataclass(slots=True)
class Notes:
    """Notes in the order in which they arose."""

    lines: list[Note] = field(default_factory=list)

    def add(self, kind: Kind, key: str, text: str, refused: bool = False) -> None:
        """Write one down."""
        self.lines.append(Note(kind, key, text, refused))
