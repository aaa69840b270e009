"""Replicas that Ray keeps, as the ingress sees them. Imports Ray."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from ray.exceptions import RayError, RayTaskError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle
from starlette.types import Message

from augury.scale.fleet import ReplicaLost
from augury.scale.ray_router import ROUTERS

GATHER = 30.0  # seconds for all replicas to answer a call


class RayFleet:
    """The replicas of one deployment."""

    def __init__(self, handle: DeploymentHandle) -> None:
        self._handle = handle
        self._streams = handle.options(method_name="answer", stream=True)

    async def open(self) -> None:
        """Have Ray make its router in this process, which it does at the first call."""
        await self._handle.broadcast("load").results_async(return_exceptions=True)

    def names(self) -> list[str]:
        """Those that take requests now."""
        router = ROUTERS.get(str(self._handle.deployment_id))
        return router.names() if router is not None else []

    async def answer(self, name: str, scope: dict[str, Any], body: bytes) -> AsyncIterator[list[Message]]:
        """What a replica sends for a request; raises ReplicaLost."""
        stream = self._streams.remote(name, scope, body)
        ended = False
        try:
            async for messages in stream:
                yield messages
            ended = True
        except RayTaskError:  # the replica is there, and failed on this request
            ended = True
            raise
        except (RayError, RayServeException) as error:
            ended = True
            raise ReplicaLost(type(error).__name__) from error
        finally:
            if not ended:
                stream.cancel()

    async def everywhere(self, method: str, *given: Any) -> dict[str, Any]:
        """What all replicas answer to a call, by name."""
        asked = self._handle.broadcast("named", method, *given)
        answers = await asked.results_async(timeout_s=GATHER, return_exceptions=True)
        return dict(answer for answer in answers if isinstance(answer, tuple))
