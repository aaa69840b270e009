"""The YAML tables in this directory, read and checked."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict


class Row(BaseModel):
    """One line of a table."""

    model_config = ConfigDict(extra="forbid", frozen=True)


Kind = TypeVar("Kind", bound=Row)


def table(name: str) -> Any:
    """Contents of a YAML file in this directory."""
    return yaml.safe_load((Path(__file__).parent / f"{name}.yaml").read_text(encoding="utf-8"))


def rows(name: str, kind: type[Kind]) -> tuple[Kind, ...]:
    """A table of one kind of row, in the order of its file."""
    return tuple(kind(**one) for one in table(name))
