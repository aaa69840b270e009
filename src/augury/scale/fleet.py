"""What the ingress needs of the system that runs the replicas: Ray, or a stand-in in tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Protocol

from starlette.types import Message


class ReplicaLost(Exception):
    """The replica died, or cannot be reached, while it worked on a request."""


class Fleet(Protocol):
    """Replicas by name, and ways to call one or all."""

    def names(self) -> list[str]:
        """Names of the replicas that take requests now."""
        ...

    def answer(self, name: str, scope: dict[str, Any], body: bytes) -> AsyncIterator[list[Message]]:
        """Yield what a replica sends for a request; raises ReplicaLost. Closing the iterator early ends the request."""
        ...

    async def everywhere(self, method: str, *given: Any) -> dict[str, Any]:
        """What all replicas return from a call, by replica name; one that is lost meanwhile is left out."""
        ...
