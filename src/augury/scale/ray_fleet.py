"""The fleet of replicas that Ray runs, for the ingress. Imports Ray."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from ray.exceptions import RayError, RayTaskError
from ray.serve.exceptions import DeploymentUnavailableError, RayServeException
from ray.serve.handle import DeploymentHandle
from starlette.types import Message

from augury.scale.fleet import ReplicaLost
from augury.scale.registry import names_of

GATHER = 30.0  # seconds for all replicas to answer a call
LOOK = 0.2  # seconds between two checks for the first replica


class RayFleet:
    """The replicas of one deployment."""

    def __init__(self, handle: DeploymentHandle) -> None:
        self._handle = handle
        self._streams = handle.options(method_name="answer", stream=True)

    async def open(self) -> None:
        """Wait for the first replica; the first call makes Ray create its router in this process."""
        while not await self.everywhere("load"):
            await asyncio.sleep(LOOK)

    def names(self) -> list[str]:
        """Names of the replicas that take requests now."""
        return names_of(str(self._handle.deployment_id))

    async def answer(self, name: str, scope: dict[str, Any], body: bytes) -> AsyncIterator[list[Message]]:
        """Yield what a replica sends for a request; raises ReplicaLost."""
        stream = self._streams.remote(name, scope, body)
        ended = False
        try:
            async for messages in stream:
                yield messages
            ended = True
        except RayTaskError:  # the replica is alive, but failed on this request
            ended = True
            raise
        except (RayError, RayServeException) as error:
            ended = True
            raise ReplicaLost(type(error).__name__) from error
        finally:
            if not ended:
                stream.cancel()

    async def everywhere(self, method: str, *given: Any) -> dict[str, Any]:
        """What all replicas return from a call, by replica name."""
        asked = self._handle.broadcast("named", method, *given)
        try:
            answers = await asked.results_async(timeout_s=GATHER, return_exceptions=True)
        except (DeploymentUnavailableError, TimeoutError):
            return {}
        return dict(answer for answer in answers if isinstance(answer, tuple))
