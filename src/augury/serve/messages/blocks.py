"""An answer as content blocks, and as the events that stream them."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

from pydantic_core import from_json

from augury.serve.parsers.events import ARGUMENTS, CALL, CONTENT, Event

Block = dict[str, Any]
Told = dict[str, Any]


class BlockWriter:
    """Writes blocks one after another; each event of a parser becomes events of the API."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []  # the last of them may be unfinished
        self._open = False
        self._pieces: list[str] = []  # of the open block's text

    def write(self, event: Event) -> Iterator[Told]:
        """Yield the API's events for an event of the parser."""
        if event.kind == ARGUMENTS:
            yield self._delta({"type": "input_json_delta", "partial_json": event.text})
        elif event.kind == CALL:
            call = {"type": "tool_use", "id": f"toolu_{uuid.uuid4().hex[:24]}", "name": event.text, "input": {}}
            yield from self._begin(call)
            return
        else:
            kind = "text" if event.kind == CONTENT else "thinking"
            if not self._open or self.blocks[-1]["type"] != kind:
                signed = {} if kind == "text" else {"signature": ""}  # signatures are not checked
                yield from self._begin({"type": kind, kind: "", **signed})
            yield self._delta({"type": f"{kind}_delta", kind: event.text})
        self._pieces.append(event.text)

    def close(self) -> Iterator[Told]:
        """Finish the open block, if there is one."""
        if not self._open:
            return
        self._open, text, block = False, "".join(self._pieces), self.blocks[-1]
        if block["type"] == "tool_use":
            block["input"] = _arguments(text)
        else:
            block[block["type"]] = text
        yield {"type": "content_block_stop", "index": len(self.blocks) - 1}

    def _begin(self, block: Block) -> Iterator[Told]:
        yield from self.close()
        self.blocks.append(block)
        self._open, self._pieces = True, []
        yield {"type": "content_block_start", "index": len(self.blocks) - 1, "content_block": dict(block)}

    def _delta(self, delta: Told) -> Told:
        return {"type": "content_block_delta", "index": len(self.blocks) - 1, "delta": delta}


def _arguments(text: str) -> dict[str, Any]:
    """A call's arguments as an object; if max_tokens cut them off, as much as is there, as clients read a stream."""
    try:
        found = from_json(text or "{}", allow_partial=True)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
