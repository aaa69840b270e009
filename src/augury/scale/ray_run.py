"""`augury serve --replicas`: starts or joins Ray, runs the application, drains and ends it. Imports Ray."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading

import ray
from ray import serve

from augury.scale.doorstep import CALLBACK, ENVIRONMENT
from augury.scale.ray_app import application
from augury.serve.options import ServerOptions
from augury.serve.server import ServeError, bind
from augury.serve.service import Settings

logger = logging.getLogger("augury")
NAME = "augury"
STORE = 256 << 20  # bytes of Ray's object store: messages are small, and memory is for caches
WAIT = 1.0
# For a cluster that is ours alone. By default workers run at nice 15, so that engines would yield to everything else on
# the machine, and the controller checks its replicas ten times a second, which costs a twentieth of a core.
OURS = {"RAY_worker_niceness": "0", "RAY_SERVE_CONTROL_LOOP_INTERVAL_S": "0.5", **CALLBACK}


def run(settings: Settings, given: ServerOptions) -> None:
    """Serve until told to end; raises ServeError."""
    with bind(settings) as probe:  # refuses a taken port before anything slow is done, and picks a free one
        port = int(probe.getsockname()[1])
    os.environ[ENVIRONMENT] = str(settings.limits.write_seconds)  # inherited by the proxy
    _join(given.ray_address)
    try:
        _share_out(settings, given)
        _serve(application(settings, given), settings, given, port)
    except RuntimeError as error:  # Ray raises it when a deployment could not be started
        raise ServeError(" ".join(str(error).split())[:600]) from None
    finally:
        if given.ray_address is None:
            serve.shutdown()
        ray.shutdown()


def _serve(app: serve.Application, settings: Settings, given: ServerOptions, port: int) -> None:
    """Run the application until told to end; only what was started here is deleted."""
    told = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):  # after Ray, which installs its own
        signal.signal(number, signal.default_int_handler)  # a first start takes minutes: nobody waits for its end
    serve.start(http_options={"host": settings.host, "port": port})
    try:
        serve.run(app, name=NAME, route_prefix="/")
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: told.set())
        logger.info("%d replicas are ready on http://%s:%d", given.replicas, _shown(settings.host), port)
        while not told.wait(WAIT):  # a wait without a timeout would not handle signals
            pass
        logger.info("shutting down; running requests have %g seconds to finish", settings.shutdown_timeout)
    except KeyboardInterrupt:
        logger.info("ended before the replicas were ready")
    finally:
        serve.delete(NAME)


def _join(address: str | None) -> None:
    """Connect to a cluster, or start one on this machine that ends with this process."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no usage is reported unless the operator wants that
    if address is None:
        for name, value in OURS.items():
            os.environ.setdefault(name, value)
        quiet = {"enable_metrics_collection": False}  # Ray's own; ours are at /metrics
        ray.init(address="local", include_dashboard=False, object_store_memory=STORE, _system_config=quiet)
        return
    try:
        ray.init(address=address, namespace="serve")
    except (ConnectionError, ValueError, RuntimeError) as error:  # nobody there; no address; another version of Ray
        raise ServeError(f"--ray-address {address}: {' '.join(str(error).split())[:600]}") from None


def _share_out(settings: Settings, given: ServerOptions) -> None:
    """Set each replica's CPUs and GPUs where the command line does not; raises ServeError if there are too few."""
    there = ray.cluster_resources()
    most = given.max_replicas or given.replicas
    if given.replica_gpus is None:
        on_cpu = settings.engine.get("device") == "cpu"
        given.replica_gpus = 1.0 if there.get("GPU", 0) and not on_cpu else 0.0
    if given.replica_cpus is None:
        given.replica_cpus = max(1, int(there.get("CPU", 1)) // most)
    for name, each in (("CPU", given.replica_cpus), ("GPU", given.replica_gpus)):
        if each * given.replicas > there.get(name, 0):
            have = f"{there.get(name, 0):g}"
            raise ServeError(f"{given.replicas} replicas of {each:g} {name} need more than the cluster's {have}.")


def _shown(host: str) -> str:
    return socket.gethostname() if host in ("0.0.0.0", "::") else host  # noqa: S104  # compared, not bound
