"""What was decided on the user's behalf, and why: every inference, translation and disagreement is one note."""

from __future__ import annotations

from typing import Literal, NamedTuple

Kind = Literal["inferred", "translated", "unused", "warning", "unchecked", "vllm"]

LOUD: tuple[Kind, ...] = ("translated", "unused", "warning")  # what a run logs, once


class Note(NamedTuple):
    """One remark about one key."""

    kind: Kind
    key: str
    text: str
    refused: bool = False  # vLLM would refuse the configuration for this

    def __str__(self) -> str:
        """The line a log shows."""
        return f"{self.key}: {self.text}"
