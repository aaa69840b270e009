"""JSON from a file named by the user."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from augury.config.errors import ConfigError

LARGEST = 64 << 20  # bytes; such files are far smaller


def read_json(path: Path, where: str = "") -> Any:
    """Read a JSON file; `where` is how errors refer to it, by default its path."""
    where = where or str(path)
    try:
        with path.open("rb") as file:
            return json.loads(file.read(LARGEST))
    except OSError as error:
        raise ConfigError(f"{where}: {error.strerror}.") from None
    except (ValueError, RecursionError):
        raise ConfigError(f"{where}: not JSON.") from None
