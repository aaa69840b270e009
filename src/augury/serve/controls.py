"""Orders to the engine process other than generation requests, and its replies."""

from __future__ import annotations

import asyncio
from typing import Any

from augury.serve.errors import ApiError
from augury.serve.wire import Message, pack


class Controls:
    """One order at a time; the engine carries it out between two steps."""

    def __init__(self) -> None:
        self._answer: asyncio.Future[Message] | None = None
        # The start message as the command line asks, kept once another drafter has been swapped in.
        self._first: Message | None = None

    async def ask(self, writer: asyncio.StreamWriter, order: Message) -> Message:
        """Send an order and wait for the answer; raises ApiError if it cannot be carried out."""
        if self._answer is not None:
            raise ApiError(409, "something else is being loaded; try again.", code="busy")
        self._answer = asyncio.get_running_loop().create_future()
        try:
            writer.write(pack(order))
            answer = await asyncio.shield(self._answer)
        finally:
            if self._answer is None or self._answer.done():
                self._answer = None
        if "error" in answer:
            raise ApiError(400, answer["error"], "directory" if order["type"] == "swap" else "lora_path")
        return answer

    def answered(self, message: Message) -> None:
        """Pass the engine's reply to whoever waits for it."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(message)
            self._answer = None

    def fail(self) -> None:
        """Fail the order that waits, if any: the engine has died."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ApiError(503, "the engine died while it loaded something.", code="engine_died"))
            self._answer.exception()  # the client may have left
        self._answer = None

    def swapped(self, start: Message, model: str) -> Message:
        """The start message of the next engine, now that another drafter is swapped in."""
        self._first = self._first or start
        return with_drafter(start, model)

    def without_swaps(self) -> Message | None:
        """The start message with the drafter of the command line; None if none has been swapped in since."""
        first, self._first = self._first, None
        return first


def with_drafter(start: Message, model: str) -> Message:
    """The start message with another drafter, so that a restart keeps what was swapped in."""
    arguments: dict[str, Any] = start["arguments"]
    spec = {**(arguments.get("speculative_config") or {}), "model": model}
    return {**start, "arguments": {**arguments, "speculative_config": spec}}
