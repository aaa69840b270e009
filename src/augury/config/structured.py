"""StructuredOutputsParams: the form an answer must have, by vLLM's names."""

from __future__ import annotations

import json as json_text
from dataclasses import dataclass, fields
from typing import Any

from augury.config.errors import ConfigError, shown, unknown_keyword

KINDS = ("json", "regex", "choice", "grammar", "json_object")
SCHEMAS_BY_NAME = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
SOURCE_BYTES = 1 << 20  # of a schema, a regex, a grammar or all choices together
VALUES = ("const", "enum", "default", "examples")  # keys whose contents are not schemas


@dataclass(init=False)
class StructuredOutputsParams:
    """One of `json`, `regex`, `choice`, `grammar` and `json_object`; the answer then has that form or is cut short."""

    json: str | dict[str, Any] | None = None  # a JSON schema
    regex: str | None = None  # the whole answer matches it
    choice: list[str] | None = None  # the answer is one of these
    grammar: str | None = None  # Lark, or GBNF/EBNF with a rule `root`
    json_object: bool | None = None  # any JSON object
    disable_fallback: bool = False  # vLLM's; there is one back end here, so nothing falls back
    disable_any_whitespace: bool = False  # JSON without spaces or line ends between its parts
    disable_additional_properties: bool = False  # objects take no other properties unless their schema says so
    whitespace_pattern: str | None = None  # a regex for what may stand between the parts of JSON
    structural_tag: str | None = None

    def __init__(self, **given: Any) -> None:
        for f in fields(self):
            setattr(self, f.name, given.pop(f.name, f.default))
        for name in given:
            raise unknown_keyword(name, (f.name for f in fields(self)), "StructuredOutputsParams")
        self._check_kind()
        self._check_values()

    @classmethod
    def of(cls, value: Any) -> StructuredOutputsParams | None:
        """What SamplingParams was given: such an object, a dictionary of its values, or nothing."""
        if value is None or isinstance(value, cls):
            return value
        if not isinstance(value, dict):
            raise ConfigError(
                f"structured_outputs must be StructuredOutputsParams(...) or a dictionary, got {shown(value)}."
            )
        try:
            return cls(**value)
        except TypeError as error:
            raise ConfigError(f"structured_outputs: {error}") from None

    @property
    def kind(self) -> str:
        """Which of KINDS is asked for."""
        return next(name for name in KINDS if self._given(name))

    @property
    def schema(self) -> Any:
        """The JSON schema, parsed; for `json_object` that of any object."""
        if self.json_object:
            return {"type": "object"}
        schema = json_text.loads(self.json) if isinstance(self.json, str) else self.json
        return closed(schema) if self.disable_additional_properties else schema

    def _given(self, name: str) -> bool:
        value = getattr(self, name)
        return value is not None and value is not False

    def _check_kind(self) -> None:
        if self.structural_tag is not None:
            raise ConfigError("structured_outputs.structural_tag is not supported; write the form as a `grammar`.")
        kinds = [name for name in KINDS if self._given(name)]
        if len(kinds) != 1:
            have = " and ".join(kinds) or "none"
            raise ConfigError(f"structured_outputs needs exactly one of {', '.join(KINDS)}; it has {have}.")

    def _check_values(self) -> None:
        def need(condition: bool, name: str, rule: str) -> None:
            if not condition:
                raise ConfigError(f"structured_outputs.{name} must be {rule}, got {shown(getattr(self, name))}.")

        for name in ("regex", "grammar", "whitespace_pattern"):
            value = getattr(self, name)
            need(value is None or isinstance(value, str), name, "a string")
            check_size(name, len(value or ""))
        flags = ("json_object", "disable_fallback", "disable_any_whitespace", "disable_additional_properties")
        for name in flags:
            need(getattr(self, name) is None or isinstance(getattr(self, name), bool), name, "true or false")
        choices = self.choice
        if choices is not None:
            texts = isinstance(choices, (list, tuple)) and all(isinstance(c, str) for c in choices)
            need(texts and len(choices) > 0, "choice", "a non-empty list of strings")
            check_size("choice", sum(map(len, choices)) + len(choices))
        if self.json is not None:
            self._check_schema(need)

    def _check_schema(self, need: Any) -> None:
        need(isinstance(self.json, (str, dict)), "json", "a JSON schema: an object, or its text")
        try:
            text = self.json if isinstance(self.json, str) else json_text.dumps(self.json)
            check_size("json", len(text))  # before it is parsed, which takes longest
            need(isinstance(json_text.loads(text), dict), "json", "a JSON schema: an object, or its text")
        except (ValueError, TypeError, RecursionError) as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(f"structured_outputs.json is not JSON: {error}.") from None


def check_size(name: str, size: int) -> None:
    """Refuse a source above the size limit."""
    if size > SOURCE_BYTES:
        raise ConfigError(f"structured_outputs.{name} has {size} characters; the limit is {SOURCE_BYTES}.")


def closed(schema: Any) -> Any:
    """The schema with additionalProperties false wherever an object with properties leaves it open."""
    if isinstance(schema, list):
        return [closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    inner: dict[str, Any] = {}
    for key, value in schema.items():
        if key in SCHEMAS_BY_NAME and isinstance(value, dict):
            inner[key] = {name: closed(part) for name, part in value.items()}
        else:
            inner[key] = value if key in VALUES else closed(value)
    if isinstance(schema.get("properties"), dict) and schema.get("type", "object") == "object":
        inner.setdefault("additionalProperties", False)
    return inner
