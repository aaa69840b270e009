"""Allows only one run at a time in a directory, because two would overwrite each other's state."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from augury.config.errors import ConfigError
from augury.train.crew import speaks

LOCK = ".lock"


@contextmanager
def alone_in(directory: Path) -> Iterator[None]:
    """Lock the directory until the process ends, however it ends; in a crew, only the first process holds the lock."""
    if not speaks():
        yield
        return
    file = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"--out {directory}: another training runs there; wait or name another.") from None
        yield
    finally:
        os.close(file)
