"""Types and ranges of the keys, with errors in plain words."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, TypeVar, get_origin

from pydantic import BaseModel, ValidationError

from augury.config.errors import ConfigError, problem, shown
from augury.config.keys import accepts, choices, declared, is_nullable, takes_bool

Model = TypeVar("Model", bound=BaseModel)


def validated(model: type[Model], keys: Mapping[str, Any]) -> Model:
    """Build a model of these keys; the first problem becomes one line that says what to write."""
    clean = {}
    for name, value in keys.items():
        field = model.model_fields[name]
        if value is None and (is_nullable(field) or name == "method"):
            continue
        if value is None:
            raise problem(name, value, f"must be {accepts(field)}; leave the key out instead of writing null")
        if isinstance(value, bool) and not takes_bool(field):
            raise problem(name, value, f"must be {accepts(field)}")
        clean[name] = value
    try:
        return model(**clean)
    except ValidationError as error:
        raise _explained(model, error) from None


def _explained(model: type[BaseModel], error: ValidationError) -> ConfigError:
    first = error.errors(include_url=False)[0]
    name, where = str(first["loc"][0]), ".".join(map(str, first["loc"]))
    field = model.model_fields[name]
    if first["type"] == "extra_forbidden":
        known = accepts(field).removeprefix("an object with ").removesuffix(", or null")
        return ConfigError(f"speculative_config.{where} is unknown; {name} takes {known}.")
    must = declared(model)[name].accepts
    if len(first["loc"]) > 1 and get_origin(field.annotation) is not None and "object" not in must:
        return ConfigError(f"speculative_config.{name}: {shown(first['input'])} does not fit; it must be {must}.")
    if len(first["loc"]) > 1:
        return ConfigError(f"speculative_config.{where}={shown(first['input'])} is wrong: {first['msg'].lower()}.")
    close = get_close_matches(str(first["input"]), choices(field), n=1)
    hint = f"; did you mean {close[0]!r}?" if close else "."
    return ConfigError(f"speculative_config.{name}={shown(first['input'])} must be {must}{hint}")
