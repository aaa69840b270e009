"""How a key of speculative_config declares itself; errors, docs, `augury config keys` and the doctor read it here."""

from __future__ import annotations

import types
from dataclasses import dataclass
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, Field
from pydantic.fields import FieldInfo

from augury.config.versions import OLDEST
from augury.methods.registry import readers

OWN = "augury"  # `since` of keys and values that vLLM does not know


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """One key: what it takes, who reads it, in which vLLM releases it is valid."""

    name: str
    help: str
    accepts: str  # what a value must be, in words
    default: Any
    methods: tuple[str, ...]  # that read it; empty: all
    since: str
    until: str | None  # the first release that refuses it
    instead: str  # what to write after `until`
    runs: bool  # whether this engine acts on it
    values: dict[str, tuple[str, str | None]]  # releases of single values that were added or dropped

    @property
    def releases(self) -> str:
        """The releases in words."""
        if self.since == OWN:
            return "Augury only"
        return f"{self.since} to before {self.until}" if self.until else f"{self.since} and later"

    @property
    def instead_there(self) -> str:
        """What to write in vLLM, which does not have Augury's own keys."""
        return self.instead.rpartition(" (Augury) or ")[2].removesuffix(" (vLLM)")


def key(
    default: Any,
    help: str,
    *,
    since: str = OLDEST,
    until: str | None = None,
    instead: str = "",
    runs: bool = True,
    values: dict[str, tuple[str, str | None]] | None = None,
    accepts: str = "",
    **bounds: Any,
) -> Any:
    """A pydantic field that carries a declaration."""
    extra: dict[str, Any] = {"since": since, "until": until, "instead": instead, "runs": runs}
    extra |= {"values": values, "accepts": accepts}
    return Field(default=default, description=help, json_schema_extra=extra, **bounds)


def declared(model: type[BaseModel]) -> dict[str, ConfigKey]:
    """Every key of a model, in the order of declaration."""
    return {name: _declaration(name, field) for name, field in model.model_fields.items()}


def _declaration(name: str, field: FieldInfo) -> ConfigKey:
    extra: dict[str, Any] = dict(field.json_schema_extra) if isinstance(field.json_schema_extra, dict) else {}
    return ConfigKey(
        name,
        field.description or "",
        extra.get("accepts") or accepts(field),
        field.default,
        readers(name),
        extra.get("since", OLDEST),
        extra.get("until"),
        extra.get("instead", ""),
        extra.get("runs", True),
        extra.get("values") or {},
    )


def accepts(field: FieldInfo) -> str:
    """What a field takes, in words."""
    kind, nullable = _without_none(field.annotation)
    words = _kind(kind) + _bounds(field)
    return f"{words}, or null" if nullable else words


def choices(field: FieldInfo) -> tuple[str, ...]:
    """The words an enumerated field takes; empty for others."""
    kind, _ = _without_none(field.annotation)
    return get_args(kind) if get_origin(kind) is Literal else ()


def is_nullable(field: FieldInfo) -> bool:
    """Whether null stands for "not set"."""
    return _without_none(field.annotation)[1]


def takes_bool(field: FieldInfo) -> bool:
    """Whether true and false mean something."""
    return _without_none(field.annotation)[0] is bool


def _without_none(annotation: Any) -> tuple[Any, bool]:
    if get_origin(annotation) in (Union, types.UnionType):
        rest = [part for part in get_args(annotation) if part is not type(None)]
        return rest[0], len(rest) < len(get_args(annotation))
    return annotation, False


def _kind(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(repr(word) for word in get_args(kind))
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return "an object with " + ", ".join(kind.model_fields)
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "a non-empty text"}
    return names.get(kind) or ("a list" if get_origin(kind) is list else "an object")


def _bounds(field: FieldInfo) -> str:
    words = []
    for bound in field.metadata:
        for sign, name in ((">", "gt"), (">=", "ge"), ("<", "lt"), ("<=", "le")):
            if getattr(bound, name, None) is not None:
                words.append(f"{sign} {getattr(bound, name)}")
    return " " + " and ".join(words) if words else ""
