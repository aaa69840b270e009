"""Converts arguments that a model writes as text between tags to JSON, by the types in the tool's schema."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import Any

from augury.serve.parsers.reader import Held, Reader

_WORDS = {
    "string": "str text varchar char enum",
    "integer": "int long short",
    "number": "float double num",
    "boolean": "bool",
    "object": "dict",
    "array": "list arr",
}
ALIASES = {word: kind for kind, words in _WORDS.items() for word in words.split()}
NAMES = {dict: "object", list: "array", str: "string", bool: "boolean", int: "integer", float: "number"}
SURROGATE = re.compile("[\ud800-\udfff]")
DEEPEST = 8  # of alternatives in alternatives
MOST = 64  # of alternatives at each

Schemas = dict[str, Any]  # of a function's arguments, by name
Tools = dict[str, Schemas]


def schemas_of(tools: list[dict[str, Any]] | None) -> Tools:
    """The schemas of every function's arguments; what is not a schema is left out."""
    found: Tools = {}
    for tool in tools or ():
        function = tool.get("function")
        if isinstance(function, dict) and isinstance(name := function.get("name"), str):
            parameters = function.get("parameters")
            properties = parameters.get("properties") if isinstance(parameters, dict) else None
            found[name] = properties if isinstance(properties, dict) else {}
    return found


def types_of(schema: Any, depth: int = 0) -> set[str]:
    """Which types a schema allows; a string where it does not say."""
    if not isinstance(schema, dict) or depth > DEEPEST:
        return {"string"}
    told = schema.get("type")
    named = told if isinstance(told, list) else [told]
    found = {ALIASES.get(name.strip().lower(), name.strip().lower()) for name in named[:MOST] if isinstance(name, str)}
    if isinstance(values := schema.get("enum"), list):
        found |= {"null" if value is None else NAMES.get(type(value), "string") for value in values[:MOST]}
    for key in ("anyOf", "oneOf", "allOf"):
        if isinstance(parts := schema.get(key), list):
            found = found.union(*(types_of(part, depth + 1) for part in parts[:MOST]))
    return found or {"string"}


def _integer(text: str) -> Any:
    return int(text)


def _number(text: str) -> Any:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    return int(value) if value == int(value) else value


def _boolean(text: str) -> Any:
    return {"true": True, "1": True, "false": False, "0": False}[text.strip().lower()]


def _null(text: str) -> Any:
    return {"null": None}[text.strip().lower()]


def _structure(text: str) -> Any:
    value = json.loads(text)
    json.dumps(value, allow_nan=False)
    return value


READERS: dict[str, Callable[[str], Any]] = {  # in the order in which they are tried
    "null": _null,
    "integer": _integer,
    "number": _number,
    "boolean": _boolean,
    "object": _structure,
    "array": _structure,
}


def typed(text: str, types: set[str]) -> Any:
    """The value of a text: of the first type that fits, else the text itself."""
    for name, read in READERS.items():
        if name in types:
            try:
                return read(text)
            except (ValueError, KeyError, OverflowError, RecursionError):
                continue
    return text


def as_json(value: Any) -> str:
    """A value as JSON that can be sent: a lone surrogate, which a model may write as an escape, stays an escape."""
    text = json.dumps(value, ensure_ascii=False)
    return text if encodable(text) else json.dumps(value)


def encodable(text: str) -> bool:
    """Whether a text can be encoded in UTF-8."""
    return text.isascii() or not SURROGATE.search(text)


class Arguments:
    """Writes a call's arguments as one JSON object; strings are emitted while they are being written."""

    def __init__(self, reader: Reader, schemas: Schemas, lines: bool = False) -> None:
        self._reader, self._schemas = reader, schemas
        self._lines = lines  # whether a value is wrapped in line ends that are not its own
        self._first = True
        self._types: set[str] | None = None  # of a value that is kept until it is complete
        self._kept = Held()
        self._begun = False  # whether the value has a first character
        self._newline = False  # a line end that is the value's own only if something follows

    def begin(self, key: str) -> None:
        """Start the value of a key."""
        self._reader.arguments(("{" if self._first else ", ") + json.dumps(key, ensure_ascii=False) + ": ")
        self._first = self._begun = self._newline = False
        types = types_of(self._schemas.get(key))
        self._types, self._kept = (types, Held()) if types != {"string"} else (None, self._kept)
        if self._types is None:
            self._reader.arguments('"')

    def add(self, text: str) -> None:
        """Add to the value."""
        if self._lines and text:
            text = self._between(text)
        if self._types is None:
            self._write(text)
            return
        room = self._kept.room
        self._kept.add(text[:room])
        if self._kept.full:  # too long for anything but a text
            self._types = None
            self._reader.arguments('"')
            self._write(self._kept.text + text[room:])

    def end(self) -> None:
        """End the value."""
        if self._types is None:
            self._reader.arguments('"')
        else:
            self._reader.arguments(as_json(typed(self._kept.text, self._types)))
            self._types = None

    def close(self) -> None:
        """End the object."""
        self._reader.arguments("{}" if self._first else "}")

    def _between(self, text: str) -> str:
        """A piece of the value without the line end before it; one at its end is held back."""
        if not self._begun:
            text = text.removeprefix("\n")
        self._begun = True
        if not text:
            return text
        text = ("\n" if self._newline else "") + text
        self._newline = text.endswith("\n")
        return text[:-1] if self._newline else text

    def _write(self, text: str) -> None:
        self._reader.arguments(json.dumps(text, ensure_ascii=False)[1:-1])
