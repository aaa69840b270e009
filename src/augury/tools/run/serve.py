"""`augury serve`: runs the server until it is stopped."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Callable
from importlib.util import find_spec

from augury.config.errors import ConfigError
from augury.model.errors import ModelError
from augury.serve.options import ServerOptions
from augury.serve.server import ServeError, Server
from augury.serve.service import Settings
from augury.tools.shared.safe_text import safe_text


def run(settings: Settings) -> int:
    """Serve until stopped and return the exit code."""
    return _until_the_end(settings, lambda: asyncio.run(Server(settings).run()))


def run_replicas(settings: Settings, given: ServerOptions) -> int:
    """Serve with replicas on Ray until stopped and return the exit code."""
    if find_spec("ray") is None:
        raise ConfigError("--replicas: Ray is not installed: pip install 'augury[ray]'.")
    if settings.uds is not None:
        raise ConfigError("--uds: replicas listen on a port; leave one of the two out.")
    if given.max_replicas is not None and given.max_replicas < given.replicas:
        raise ConfigError(f"--max-replicas {given.max_replicas}: fewer than --replicas {given.replicas}.")
    from augury.scale.ray_run import run as run_on_ray

    return _until_the_end(settings, lambda: run_on_ray(settings, given))


def _until_the_end(settings: Settings, serve: Callable[[], None]) -> int:
    logging.basicConfig(format="%(levelname)s %(asctime)s %(message)s", datefmt="%m-%d %H:%M:%S", stream=sys.stderr)
    logging.getLogger("augury").setLevel(logging.DEBUG if os.environ.get("AUGURY_DEBUG") else logging.INFO)
    if settings.access_log:
        logging.getLogger("uvicorn.access").setLevel(logging.INFO)
    try:
        serve()
    except (ServeError, ModelError, OSError) as error:
        if os.environ.get("AUGURY_DEBUG"):
            raise
        print(safe_text(f"error: {' '.join(str(error).split())}"), file=sys.stderr)
        return 1
    return 0
