"""Atomic work on the cache: scratch directories, locks and replacement in one step."""

from __future__ import annotations

import hashlib
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from augury.model.errors import ModelError
from augury.model.gguf import progress

SCRATCH, LOCK = ".tmp-", ".lock-"


@contextmanager
def scratch(final: Path, quiet: bool) -> Iterator[Path]:
    """A fresh directory next to `final`, locked against other processes and deleted at the end."""
    room = _nameless(final)
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        with _locked(final, quiet) as held:
            _sweep(final.parent, final.name if held else None)
            room.mkdir()
            yield room
    except OSError as error:
        raise ModelError(
            f"{error.filename or final.parent}: {error.strerror or error}; "
            "fix that, or set AUGURY_CACHE to a directory with free space."
        ) from error
    finally:
        shutil.rmtree(room, ignore_errors=True)


def install(room: Path, final: Path, usable: Callable[[Path], bool]) -> None:
    """Give a finished directory its final name, in place of anything there that is not usable."""
    for _ in range(3):
        try:
            os.replace(room, final)
            return
        except OSError:  # a directory that is not empty cannot be replaced
            if usable(final):
                return
            discard(final)
    raise ModelError(f"{final}: cannot be replaced; remove it.")


def discard(path: Path) -> None:
    """Delete a file or directory so that no reader sees part of it."""
    gone = _nameless(path)
    with suppress(FileNotFoundError):
        os.replace(path, gone)
        _delete(gone)


def sha256_of(path: Path, quiet: bool = True) -> str:
    """The sha256 of a file, with a progress bar on request."""
    digest = hashlib.sha256()
    try:
        with progress(f"Checking {path.name}", path.stat().st_size, quiet) as advance, path.open("rb") as handle:
            while block := handle.read(1 << 20):
                digest.update(block)
                advance(len(block))
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror}.") from error
    return digest.hexdigest()


def _delete(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _nameless(path: Path) -> Path:
    """A name next to `path` that no reader of the cache looks at."""
    return path.parent / f"{SCRATCH}{path.name}-{uuid.uuid4().hex[:8]}"


@contextmanager
def _locked(final: Path, quiet: bool, wait: bool = True) -> Iterator[bool]:
    """Hold the lock for one thing in the cache, if there are locks; the kernel releases it when a process dies."""
    try:
        import fcntl
    except ModuleNotFoundError:  # Windows: two processes do the work twice, and `install` drops the second result
        yield False
        return
    with (final.parent / f"{LOCK}{final.name}").open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not wait:
                yield False
                return
            with progress(f"Waiting for another process to make {final.name}", None, quiet):
                fcntl.flock(handle, fcntl.LOCK_EX)
        except OSError:  # some network file systems have no locks
            yield False
            return
        yield True


def _sweep(folder: Path, ours: str | None) -> None:
    """Delete what killed processes left behind: scratch directories whose lock is free."""
    for path in folder.glob(f"{SCRATCH}*"):
        owner = path.name.removeprefix(SCRATCH).rpartition("-")[0]
        if owner == ours:
            _delete(path)
            continue
        with _locked(folder / owner, quiet=True, wait=False) as free:
            if free:
                _delete(path)
