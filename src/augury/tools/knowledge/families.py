"""Model families as data: what a name or a model_type tells when no file is at hand."""

from __future__ import annotations

import re
from functools import cache
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from augury.config.errors import ConfigError
from augury.config.versions import version
from augury.methods.mtp import ALIASES
from augury.tools.knowledge.base import FOLDER

FILE = FOLDER / "families.yaml"


class Named(BaseModel):
    """A family of targets as hub names spell it; families.yaml says what each field means."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    family: str
    names: tuple[str, ...]
    types: tuple[str, ...] = ()
    mtp: Literal["own", "none", "assistant", "unknown"]
    depth: int | None = None
    alias: str = ""
    tokenizer: str | None = None
    vocab: int | None = None
    hybrid: bool = False
    multimodal: bool = False
    since: str | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Named:
        if self.alias and self.alias not in ALIASES:
            raise ValueError(f"alias {self.alias!r} is unknown")
        if self.depth is not None and self.mtp != "own":
            raise ValueError("a depth belongs to MTP layers of its own")
        version(self.since or "0.8.2", "since")
        return self


@cache
def families() -> tuple[Named, ...]:
    """Every row, checked."""
    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    written = yaml.load(FILE.read_text(encoding="utf-8"), Loader=loader)  # noqa: S506 (it is a safe one)
    try:
        return tuple(Named(**row) for row in written)
    except ValidationError as error:
        raise ConfigError(f"{FILE.name}: {error.errors()[0]['msg']}.") from None


def by_name(name: str) -> Named | None:
    """The row that a hub id or a directory's last part names; of several, the one with the longest match."""
    last = name.rstrip("/").rpartition("/")[2].lower().replace("_", "-")
    matches = [(part, row) for row in families() for part in row.names if _says(last, part)]
    return max(matches, key=lambda match: len(match[0]))[1] if matches else None


def by_type(kind: str | None) -> Named | None:
    """The row of a model_type."""
    return next((row for row in families() if kind in row.types), None)


def _says(name: str, part: str) -> bool:
    """Whether a name contains a part as whole words and version numbers: qwen3 is not in qwen3.5."""
    return re.search(rf"(?<![a-z0-9]){re.escape(part)}(?!\d|\.\d)", name) is not None
