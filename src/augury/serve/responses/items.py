"""An answer as output items of the Responses API, and as the events that stream them."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

from augury.serve.parsers.events import ARGUMENTS, CALL, CONTENT, Event

Item = dict[str, Any]
Told = dict[str, Any]


def new_id(prefix: str) -> str:
    """An id that cannot be guessed."""
    return f"{prefix}_{uuid.uuid4().hex}"


class Writer:
    """Writes items one after another; each event of a parser becomes events of the API."""

    def __init__(self) -> None:
        self.items: list[Item] = []  # the last of them may be unfinished
        self._open = False
        self._pieces: list[str] = []  # of the open item's text
        self._kind = ""

    def write(self, event: Event) -> Iterator[Told]:
        """Yield the API's events for an event of the parser."""
        if event.kind == CALL:
            yield from self.close()
            yield from self._begin(CALL, self._call(event.text))
            return
        if event.kind == ARGUMENTS:
            yield self._told("response.function_call_arguments.delta", delta=event.text)
        else:
            if not self._open or self._kind != event.kind:
                yield from self.close()
                yield from self._begin(event.kind, _message() if event.kind == CONTENT else _reasoning())
            name = "output_text" if event.kind == CONTENT else "reasoning_text"
            extra: Told = {"logprobs": []} if event.kind == CONTENT else {}
            yield self._told(f"response.{name}.delta", content_index=0, delta=event.text, **extra)
        self._pieces.append(event.text)

    def close(self, whole: bool = True) -> Iterator[Told]:
        """Finish the open item, if there is one."""
        if not self._open:
            return
        self._open, text, item = False, "".join(self._pieces), self.items[-1]
        if self._kind == CALL:
            item["arguments"] = text
            yield self._told("response.function_call_arguments.done", arguments=text, name=item["name"])
        elif self._kind == CONTENT:
            part = _text_part(text)
            item["content"] = [part]
            yield self._told("response.output_text.done", content_index=0, text=text, logprobs=[])
            yield self._told("response.content_part.done", content_index=0, part=part)
        else:
            item["content"] = [{"type": "reasoning_text", "text": text}]
            yield self._told("response.reasoning_text.done", content_index=0, text=text)
        item["status"] = "completed" if whole else "incomplete"
        yield self._of_item("response.output_item.done")

    def _begin(self, kind: str, item: Item) -> Iterator[Told]:
        self.items.append(item)
        self._open, self._kind, self._pieces = True, kind, []
        yield self._of_item("response.output_item.added")
        if kind == CONTENT:
            yield self._told("response.content_part.added", content_index=0, part=_text_part(""))

    def _call(self, name: str) -> Item:
        told = {"call_id": new_id("call"), "name": name, "arguments": ""}
        return {"id": new_id("fc"), "type": "function_call", "status": "in_progress", **told}

    def _of_item(self, name: str) -> Told:
        return {"type": name, "output_index": len(self.items) - 1, "item": dict(self.items[-1])}

    def _told(self, name: str, /, **more: Any) -> Told:
        return {"type": name, "item_id": self.items[-1]["id"], "output_index": len(self.items) - 1, **more}


def _message() -> Item:
    return {"id": new_id("msg"), "type": "message", "status": "in_progress", "role": "assistant", "content": []}


def _reasoning() -> Item:
    return {"id": new_id("rs"), "type": "reasoning", "status": "in_progress", "summary": [], "content": []}


def _text_part(text: str) -> Item:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
