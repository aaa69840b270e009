"""vLLM's release, however a build spells it."""

from __future__ import annotations

import re

from augury.config.versions import OLDEST, Version, version


def release_in(text: str | None) -> str | None:
    """The numbers in "0.19.2rc1.dev8+g4b7f5ea1a" and the like; None for releases older than the oldest known."""
    found = re.match(r"v?(\d{1,4}\.\d{1,4}(?:\.\d{1,4})?)", (text or "").strip())
    if not found or version(found[1]) < version(OLDEST):
        return None
    return found[1]


def release_numbers(text: str | None) -> Version | None:
    """The release as a comparable Version; None if `release_in` finds none."""
    found = release_in(text)
    return version(found) if found else None
