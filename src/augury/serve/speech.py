"""What a chat's answer says: text, reasoning and calls, in OpenAI's shapes, streamed or whole by the same parser."""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Callable
from string import ascii_letters, digits
from typing import Any

from augury.serve.parsers.events import ARGUMENTS, CALL, CONTENT, REASONING, Event, merged
from augury.serve.parsers.reader import Chain

Delta = dict[str, Any]


def long_id() -> str:
    """A call's id, as vLLM makes them."""
    return f"chatcmpl-tool-{uuid.uuid4().hex}"


def short_id() -> str:
    """A call's id as Mistral's templates take them."""
    return "".join(secrets.choice(ascii_letters + digits) for _ in range(9))


class Speech:
    """One answer: events as its text comes, and how many calls there were."""

    def __init__(self, parser: Chain, most_calls: int | None = None, reasons: bool = True) -> None:
        self._parser = parser
        self._most = most_calls  # calls beyond these are left out
        self._reasons = reasons  # whether the client wants to see reasoning
        self._calls = 0

    @property
    def calls(self) -> int:
        """Calls so far that are sent to the client."""
        return self._calls if self._most is None else min(self._calls, self._most)

    def take(self, text: str, ended: bool) -> list[tuple[Event, int]]:
        """The events of more text, each with the number of the call it belongs to."""
        found = self._parser.feed(text)
        if ended:
            found = found + self._parser.finish()
        shown: list[tuple[Event, int]] = []
        for event in merged(found):
            self._calls += event.kind == CALL
            hidden = event.kind == REASONING and not self._reasons
            extra = event.kind in (CALL, ARGUMENTS) and self._most is not None and self._calls > self._most
            if not hidden and not extra:
                shown.append((event, self._calls - 1))
        return shown


def deltas(found: list[tuple[Event, int]], make_id: Callable[[], str]) -> list[Delta]:
    """One delta for each event: a call begins with its name, and its arguments follow in pieces."""
    return [_delta(event, number, make_id) for event, number in found]


def _delta(event: Event, number: int, make_id: Callable[[], str]) -> Delta:
    if event.kind in (CONTENT, REASONING):
        return {event.kind: event.text}
    if event.kind == ARGUMENTS:
        return {"tool_calls": [{"index": number, "function": {"arguments": event.text}}]}
    function = {"name": event.text, "arguments": ""}
    return {"tool_calls": [{"index": number, "id": make_id(), "type": "function", "function": function}]}


def message(found: list[tuple[Event, int]], make_id: Callable[[], str]) -> dict[str, Any]:
    """The complete message of an answer."""
    texts: dict[str, str] = {CONTENT: "", REASONING: ""}
    calls: list[dict[str, Any]] = []
    for event, _ in found:
        if event.kind == CALL:
            calls.append({"id": make_id(), "type": "function", "function": {"name": event.text, "arguments": ""}})
        elif event.kind == ARGUMENTS:
            calls[-1]["function"]["arguments"] += event.text
        else:
            texts[event.kind] += event.text
    said: dict[str, Any] = {"role": "assistant", "content": texts[CONTENT] if texts[CONTENT] or not calls else None}
    if texts[REASONING]:
        said["reasoning"] = texts[REASONING]
    return {**said, "tool_calls": calls} if calls else said
