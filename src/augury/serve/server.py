"""The life of the server: bind, start the engine, serve, drain, end."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import logging
import os
import resource
import signal
import socket
import stat
import time
from collections.abc import Iterator

import uvicorn

from augury.config.files import cache_dir
from augury.observe.running import announced
from augury.serve.app import make_app
from augury.serve.connection import with_patience
from augury.serve.engine_start import EngineFailed
from augury.serve.memory import give_back
from augury.serve.observatory import Observatory
from augury.serve.opening import opened
from augury.serve.service import Service, Settings
from augury.serve.welcome import record_of, welcome

logger = logging.getLogger("augury")
SENT = 128 << 10  # bytes that the system buffers for a connection's client; it may double that
GRACE = 5  # seconds for connections to end once nothing runs


class ServeError(Exception):
    """The server cannot run; the message is one line for the user."""


class Listener(uvicorn.Server):
    """uvicorn without its signal handlers: ours drain first."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone."""
        yield


def bind(settings: Settings) -> socket.socket:
    """The socket to listen on, before anything slow is done."""
    try:
        if settings.uds is not None:
            return _bind_path(settings.uds)
        family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
        made = socket.socket(family, socket.SOCK_STREAM)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((settings.host, settings.port))
        return _narrow(made)
    except OSError as error:
        where = settings.uds or f"{settings.host}:{settings.port}"
        fix = "; another program listens there, choose another --port" if error.errno == errno.EADDRINUSE else ""
        raise ServeError(f"cannot listen on {where}: {error.strerror or error}{fix}.") from None


def _bind_path(path: str) -> socket.socket:
    """A Unix socket; one that no process listens on is replaced, any other file is left alone."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    if os.path.exists(path) and stat.S_ISSOCK(os.stat(path).st_mode):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            if probe.connect_ex(path) == errno.ECONNREFUSED:
                os.unlink(path)
    made.bind(path)
    return _narrow(made)


def _narrow(listening: socket.socket) -> socket.socket:
    """Limit what the system buffers for a client that does not read: by default megabytes, which no timeout sees."""
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SENT)
    return listening


def _allow_many_connections() -> None:
    """Raise the limit of open files as far as it may be raised: each client's connection is one."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


class Server:
    """One run of `augury serve`."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.failure: str | None = None
        self._listener: Listener | None = None
        self._drainer: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Serve until told to end; raises ServeError if it ends otherwise."""
        _allow_many_connections()
        give_back()
        with bind(self.settings) as ours:
            self._catch_signals()
            try:
                async with opened(self.settings, self._give_up) as service:
                    await self._serve(service, ours)
            except EngineFailed as error:
                raise ServeError(str(error)) from None
            except asyncio.CancelledError:  # told to end while the model was loading
                return
        if self.settings.uds is not None:
            with contextlib.suppress(OSError):
                os.unlink(self.settings.uds)
        if self.failure is not None:
            raise ServeError(self.failure)

    async def _serve(self, service: Service, ours: socket.socket) -> None:
        settings, limits = self.settings, self.settings.limits
        config = uvicorn.Config(
            make_app(service),
            http=with_patience(limits.read_seconds, limits.write_seconds),
            ws="none",
            lifespan="off",
            access_log=settings.access_log,
            log_config=None,
            log_level="info" if settings.access_log else "warning",
            timeout_graceful_shutdown=GRACE,
            server_header=False,
        )
        if self.failure is not None:  # the engine was lost before we could listen
            return
        gc.collect()
        gc.freeze()  # as in engine_process.py
        self._listener = Listener(config)
        self._service = service
        lines = asyncio.create_task(self._log(service.observatory))
        telemetry = service.observatory.telemetry
        sending = asyncio.create_task(telemetry.send_forever()) if telemetry is not None else None
        for line in welcome(service, ours):
            logger.info(line)
        try:
            with announced(cache_dir() / "running", record_of(service, ours)):
                await self._listener.serve([ours])
        finally:
            lines.cancel()
            if sending is not None and telemetry is not None:
                sending.cancel()
                await telemetry.send()  # the last ones

    async def _log(self, observatory: Observatory) -> None:
        if self.settings.log_stats:
            await observatory.log_forever(self.settings.log_stats_interval)

    # --- the end ----------------------------------------------------------------------------------------------------

    def _catch_signals(self) -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._told_to_end, task)

    def _told_to_end(self, task: asyncio.Task[None]) -> None:
        if self._listener is None:
            task.cancel()
        elif self._drainer is None:
            self._drainer = asyncio.create_task(self._drain(self._listener))
        else:
            self._listener.should_exit = self._listener.force_exit = True  # told twice: at once

    async def _drain(self, listener: Listener) -> None:
        """Refuse new requests, let running ones finish, then end."""
        gate, deadline = self._service.gate, time.monotonic() + self.settings.shutdown_timeout
        assert gate is not None
        gate.leaving = True
        logger.info("shutting down; %d requests may finish", gate.at_work)
        while gate.at_work and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
        if gate.at_work:
            logger.warning("%d requests were cut off after %g seconds", gate.at_work, self.settings.shutdown_timeout)
            self._service.client.cut_off()
        listener.should_exit = True

    def _give_up(self, why: str) -> None:
        self.failure = self.failure or why  # the first reason is the one to tell
        if self._listener is not None:
            self._listener.should_exit = True
