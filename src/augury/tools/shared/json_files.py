"""JSON from a file named by the user."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from augury.config.errors import ConfigError

LARGEST = 64 << 20  # bytes; what these files hold is far less


def read_json(path: Path, where: str = "") -> Any:
    """What a file holds; `where` is how an error names it, if not by its path."""
    where = where or str(path)
    try:
        with path.open("rb") as file:
            return json.loads(file.read(LARGEST))
    except OSError as error:
        raise ConfigError(f"{where}: {error.strerror}.") from None
    except (ValueError, RecursionError):
        raise ConfigError(f"{where}: not JSON.") from None
