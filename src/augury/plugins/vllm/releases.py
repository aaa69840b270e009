"""Which releases of vLLM the hooks were read and tried against."""

from __future__ import annotations

import re

OLDEST, NEWEST = (0, 26), (0, 32)


def refusal(version: str) -> str | None:
    """Why nothing is hooked into this release, in one sentence; None if it is one we know."""
    found = re.match(r"(\d+)\.(\d+)", version)
    if found is not None and OLDEST <= (int(found[1]), int(found[2])) <= NEWEST:
        return None
    span = f"{_text(OLDEST)} to {_text(NEWEST)}"
    return f"Augury's plugin knows vLLM {span} and this is {version}, so it changes nothing here."


def _text(release: tuple[int, int]) -> str:
    return ".".join(map(str, release))
