"""OpenAI's `prediction` in a request's body."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

MOST_PARTS = 4096


class TextPart(BaseModel):
    """A piece of an expected text."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["text"] = "text"
    text: str


class Prediction(BaseModel):
    """The text that is expected: one text, or a list of text parts."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["content"] = "content"
    content: str | Annotated[list[TextPart], Field(fail_fast=True, max_length=MOST_PARTS)]

    @property
    def text(self) -> str:
        """All of it."""
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
