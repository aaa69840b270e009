"""A file of servers to certify, started one pair after another, so that one command makes the whole table.

    - speculative: augury serve default --port {port} -sc '{"method": "suffix"}'
      plain: augury serve default --port {port}

Either may be an address instead of a command. `{port}` becomes a free port. `release`, `method`, `model` and `server`
say what the server does not report. Consecutive entries with the same plain server share it.
"""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from augury.config.errors import ConfigError
from augury.tools.shared.http import Server, brief

PATIENCE = 1800.0  # seconds for a server to load its model
LOOK = 0.2  # seconds between two polls
GRACE = 30.0  # seconds to end by itself


class Listed(BaseModel):
    """One entry of the file."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    speculative: str
    plain: str | None = None
    method: str | None = None
    release: str | None = None
    model: str | None = None
    server: str | None = None


def read_servers(path: Path) -> list[Listed]:
    """The entries of a file, checked."""
    try:
        written = yaml.safe_load(path.read_text(encoding="utf-8"))
        if not isinstance(written, list) or not written:
            raise ConfigError(f"--servers {path}: write a list of servers, each with `speculative:` and `plain:`.")
        return [Listed.model_validate(one) for one in written]
    except OSError as error:
        raise ConfigError(f"--servers {path}: {error.strerror}.") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"--servers {path}: {brief(error)}.") from None
    except ValidationError as error:
        says = error.errors()[0]
        where = ".".join(map(str, says["loc"]))
        raise ConfigError(f"--servers {path}: {where}: {says['msg']}.") from None


def is_address(what: str) -> bool:
    """Whether it names a server that runs already."""
    return what.startswith(("http://", "https://"))


@contextmanager
def ended_with_us() -> Iterator[None]:
    """Let a SIGTERM, which is how a CI job is cancelled, unwind as an exception, so that no server outlives us."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def running(what: str) -> Iterator[str]:
    """The address of a server: the given one, or that of a server started here and ended afterwards."""
    if is_address(what):
        yield what
        return
    with tempfile.TemporaryFile() as log:
        port = _free_port()
        process = _started(what, port, log)
        try:
            url = f"http://127.0.0.1:{port}"
            _wait(process, Server(url), what, log)
            yield url
        finally:
            _end(process)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _started(what: str, port: int, log: Any) -> subprocess.Popen[bytes]:
    try:
        words = shlex.split(what.replace("{port}", str(port)))
        return subprocess.Popen(words, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True)
    except ValueError as error:  # a quote that never ends
        raise ConfigError(f"--servers: {brief(what)}: {error}.") from None
    except OSError as error:
        raise ConfigError(f"--servers: {brief(what)}: {error.strerror}.") from None


def _wait(process: subprocess.Popen[bytes], server: Server, what: str, log: Any) -> None:
    """Wait until the server lists a model; ConfigError if it ends first, or takes longer than PATIENCE."""
    until = time.monotonic() + PATIENCE
    while not server.models():
        if process.poll() is not None:
            log.seek(0)
            said = log.read().decode("utf-8", "replace").strip().rpartition("\n")[2]
            raise ConfigError(f"--servers: {brief(what)} ended with {process.returncode}: {brief(said)}")
        if time.monotonic() > until:
            raise ConfigError(f"--servers: {brief(what)} lists no model after {PATIENCE:g} s.")
        time.sleep(LOOK)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process with everything it started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(GRACE)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # it, or children that outlive it
    process.wait()
