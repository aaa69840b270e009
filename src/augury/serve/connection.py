"""A connection that does not wait for ever for the rest of a request's head."""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol


def with_patience(seconds: float) -> type[H11Protocol]:
    """uvicorn's protocol, closing connections whose request head takes longer; limits.py does the same for bodies."""

    class Patient(H11Protocol):
        """Watches the time between the first byte of a head and its last."""

        _deadline: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            """Begin to wait: a client that connects and says nothing is slow, too."""
            super().connection_made(transport)
            self._deadline = self.loop.call_later(seconds, transport.close)

        def data_received(self, data: bytes) -> None:
            """Stop waiting once the head is whole."""
            super().data_received(data)
            head_missing = self.conn.their_state is h11.IDLE
            if not head_missing:
                self._rest()
            elif self._deadline is None:
                self._deadline = self.loop.call_later(seconds, self.transport.close)

        def connection_lost(self, exc: Exception | None) -> None:
            """Nothing left to wait for."""
            self._rest()
            super().connection_lost(exc)

        def _rest(self) -> None:
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None

    return Patient
