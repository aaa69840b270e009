"""Reading a file that may be anything: as much as is allowed, and not a byte more."""

from __future__ import annotations

from pathlib import Path

from augury.methods.errors import ConfigError

CONFIG_BYTES = 16 << 20  # of a config.json; the largest known have some hundred kilobytes


def read_bounded(path: Path, most: int) -> bytes:
    """All of a file of up to `most` bytes; a ConfigError for a larger one, or one that never ends. Raises OSError."""
    with path.open("rb") as file:
        raw = file.read(most + 1)
    if len(raw) > most:
        raise ConfigError(f"{path} has more than {most:,} bytes; nothing that belongs here is as large.")
    return raw
