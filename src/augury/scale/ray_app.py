"""The application for Ray Serve: `augury.scale.ray_app:build` in a file for `serve deploy`. Imports Ray."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import AsyncIterator
from typing import Any

from pydantic import ValidationError
from ray import serve
from ray.serve.handle import DeploymentHandle
from starlette.types import Message

from augury.config.engine import EngineConfig
from augury.config.errors import ConfigError
from augury.scale.ingress import Ingress
from augury.scale.ray_fleet import RayFleet
from augury.scale.replica import Replica
from augury.serve.limits import Limits
from augury.serve.options import ServerOptions
from augury.serve.service import Settings
from augury.serve.settings import settings_of

ROUTER = "augury.scale.ray_router:NamedReplicaRouter"
POLICY = "augury.scale.autoscale:policy"
MANY = 1 << 16  # concurrent requests: the limit that matters is that of each replica's gate
MORE = 64  # concurrent calls to a replica besides generation requests, such as for its metrics
CHECK = 5.0  # seconds between two health checks of a replica
NOT_HERE = ("host", "port", "uds", "ray_address")  # Ray's own configuration says where it listens


class EngineReplica:
    """The Ray deployment of a replica."""

    async def __init__(self, settings: Settings, threads: int | None) -> None:  # type: ignore[misc]  # Ray awaits it
        _log_to_stderr()
        if threads is not None:
            os.environ["OMP_NUM_THREADS"] = str(threads)  # inherited by the engine process
        self._name = serve.get_replica_context().replica_id.unique_id
        self._replica = Replica(settings)
        await self._replica.open()

    async def answer(self, _: str, scope: dict[str, Any], body: bytes) -> AsyncIterator[list[Message]]:
        """Yield what the application sends for a request; the replica's name, given first, is for the router."""
        async for messages in self._replica.answer(scope, body):
            yield messages

    async def named(self, method: str, *given: Any) -> tuple[str, Any]:
        """The name of the replica, and what one of its methods returns."""
        found = getattr(self._replica, method)(*given)
        return self._name, await found if hasattr(found, "__await__") else found

    def load(self) -> int:
        """Requests being answered."""
        return self._replica.load()

    def check_health(self) -> None:
        """Raise if Ray should replace this replica."""
        self._replica.check()

    def record_autoscaling_stats(self) -> dict[str, float]:
        """The metrics that the autoscaling policy reads."""
        return self._replica.figures()

    async def __del__(self) -> None:
        await self._replica.close()


class Door:
    """The Ray deployment of the ingress."""

    async def __init__(self, engines: DeploymentHandle, limits: Limits, sticky: bool) -> None:  # type: ignore[misc]
        _log_to_stderr()
        fleet = RayFleet(engines)
        await fleet.open()
        self._ingress = Ingress(fleet, limits, sticky=sticky)

    def __serve_build_asgi_app__(self) -> Ingress:
        return self._ingress


def build(args: dict[str, Any]) -> serve.Application:
    """Build the application from the options of `augury serve`, with underscores; `model` is its argument."""
    model, engine, server = read_arguments(args)
    return application(settings_of(model, engine, server), server)


def read_arguments(args: dict[str, Any]) -> tuple[str, dict[str, Any], ServerOptions]:
    """The model, the engine's arguments and the server's options, from the args of a `serve deploy` file."""
    given = dict(args)
    model = given.pop("model", "default")
    if wrong := [name for name in NOT_HERE if name in given]:
        raise ConfigError(f"{wrong[0]}: Ray's own http_options and cluster say this; leave it out of args.")
    own = {name: given.pop(name) for name in ServerOptions.model_fields if name in given}
    try:
        server = ServerOptions.model_validate(own)
        EngineConfig.parse(model=model, **given)  # unknown arguments are refused before anything is started
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(f"args: {'.'.join(map(str, first['loc']))}: {first['msg'].lower()}.") from None
    except TypeError as error:
        raise ConfigError(f"args: {str(error).removeprefix('LLM: ')}") from None
    return model, given, server


def application(settings: Settings, given: ServerOptions) -> serve.Application:
    """The application's two deployments: the engines, and the ingress in front of them."""
    settings.port, settings.host = 0, "127.0.0.1"
    options: dict[str, Any] = {"num_cpus": given.replica_cpus or 1, "num_gpus": given.replica_gpus or 0}
    grace = {"graceful_shutdown_timeout_s": settings.shutdown_timeout, "graceful_shutdown_wait_loop_s": 0.5}
    most = settings.limits.concurrent + MORE
    engines = serve.deployment(
        EngineReplica,
        name="engines",
        ray_actor_options=options,
        max_ongoing_requests=most,
        health_check_period_s=CHECK,
        request_router_config={"request_router_class": ROUTER},
        **grace,
        **_scaling(given),
    )
    door = serve.deployment(
        serve.ingress()(Door), name="door", ray_actor_options={"num_cpus": 0}, max_ongoing_requests=MANY, **grace
    )
    threads = given.replica_cpus
    return door.bind(engines.bind(settings, threads), settings.limits, given.replica_routing == "prefix")


def _scaling(given: ServerOptions) -> dict[str, Any]:
    """Deployment options for a fixed number of replicas, or for autoscaling between two."""
    most = given.max_replicas
    if most is None or most == given.replicas:
        return {"num_replicas": given.replicas}
    if most < given.replicas:
        raise ConfigError(f"--max-replicas {most}: fewer than --replicas {given.replicas}.")
    scaling = {"min_replicas": given.replicas, "max_replicas": most, "policy": {"policy_function": POLICY}}
    return {"autoscaling_config": {**scaling, "target_ongoing_requests": given.target_ongoing_requests}}


def _log_to_stderr() -> None:
    """Write our log to standard error, which Ray collects from its workers."""
    logging.basicConfig(format="%(levelname)s %(asctime)s %(message)s", datefmt="%m-%d %H:%M:%S", stream=sys.stderr)
    logging.getLogger("augury").setLevel(logging.INFO)
