"""Files named by a user: read up to a size limit, and written all or nothing; and where our own are kept."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from augury.methods.errors import ConfigError

CONFIG_BYTES = 16 << 20  # limit for a config.json; the largest known have a few hundred kilobytes
LIVE = (
    "/dev/stdout",
    "/dev/stderr",
    "/dev/fd",
    "/proc",
)  # open files by name, which belong to the process that opened them


def cache_dir() -> Path:
    """The directory that holds everything Augury downloads, converts or measures."""
    if chosen := os.environ.get("AUGURY_CACHE"):
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "augury"


def write_text(path: Path, text: str) -> None:
    """Replace a regular file atomically, keeping its mode and following links; devices and pipes are written to."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        mode = None
    if any(path.is_relative_to(place) for place in LIVE) or not (mode is None or stat.S_ISREG(mode)):
        with path.open("a", encoding="utf-8") as file:
            file.write(text)
        return
    file_itself = Path(os.path.realpath(path))
    if mode is not None and not os.access(file_itself, os.W_OK):
        raise PermissionError(13, "Permission denied", str(path))  # a rename would not check that
    beside = file_itself.with_name(f".{file_itself.name}.{os.getpid()}.tmp")
    try:
        beside.write_text(text, encoding="utf-8")
        if mode is not None:
            beside.chmod(stat.S_IMODE(mode))
        os.replace(beside, file_itself)
    finally:
        with suppress(OSError):
            beside.unlink(missing_ok=True)


def make_directory(path: Path, option: str) -> None:
    """Make a directory to write to, if it is not there; the error names the option."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{option} {path}: the directory cannot be created ({error.strerror}).") from None


def make_drafter_directory(path: Path, option: str) -> None:
    """Make a directory for a drafter's files; a drafter that is there is never overwritten."""
    make_directory(path, option)
    if any((path / name).exists() for name in ("config.json", "model.safetensors")):
        raise ConfigError(f"{option} {path}: a model is there already; name another directory.")


def read_regular(path: Path, most: int) -> bytes:
    """Like `read_bounded`, for what must be a regular file: reading a pipe would block."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ConfigError(f"{path} is not a regular file.")
        raw = file.read(most + 1)
    return _bounded(path, raw, most)


def read_bounded(path: Path, most: int) -> bytes:
    """Read a file of up to `most` bytes; raises ConfigError for a larger or endless one, and OSError."""
    with path.open("rb") as file:
        raw = file.read(most + 1)
    return _bounded(path, raw, most)


def _bounded(path: Path, raw: bytes, most: int) -> bytes:
    if len(raw) > most:
        raise ConfigError(f"{path} has more than {most:,} bytes; that is too large for such a file.")
    return raw
