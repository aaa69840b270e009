"""Which servers run on this machine: each writes a small file to a folder and holds a lock on it while it runs.

A lock ends with its process, however that ends, so a file that can be locked is of a server that has ended.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

logger = logging.getLogger("augury")


@contextmanager
def announced(folder: Path, record: dict[str, Any]) -> Iterator[None]:
    """Be found by `running` for as long as this lasts; a server whose folder cannot be written runs unlisted."""
    path = folder / f"{os.getpid()}.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    except OSError as error:
        logger.info("`augury ps` will not list this server: %s.", error)
        yield
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX)  # at most waits until `running` has looked at it
        os.write(file, json.dumps(record).encode())
        yield
    finally:
        with suppress(OSError):
            path.unlink()
        os.close(file)


def running(folder: Path) -> list[dict[str, Any]]:
    """The records of servers that run, in the order of their process ids; files of others are removed."""
    found = []
    for path in sorted(folder.glob("*.json"), key=lambda one: (len(one.name), one.name)):
        try:
            with path.open("rb") as file:
                if _locked(file.fileno()):
                    found.append(json.loads(file.read()))
                else:
                    path.unlink()
        except (OSError, ValueError):  # it has just ended, or has not written yet, or belongs to another user
            continue
    return [one for one in found if isinstance(one, dict)]


def _locked(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False
