"""Reads switches before a configuration is resolved, when a "yes" is still as it was written."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter, ValidationError

_SWITCH = TypeAdapter(bool)


def truth(value: Any) -> bool | None:
    """True or false, by pydantic's rules as in vLLM ("yes", "on", 1); None for what those refuse."""
    try:
        return _SWITCH.validate_python(value)
    except ValidationError:
        return None
