"""Command-line options generated from the models whose fields they fill: type, default, bounds and help."""

from __future__ import annotations

import dataclasses
import inspect
import os
from collections.abc import Callable, Iterator
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import typer
from pydantic import BaseModel, Field
from pydantic.fields import FieldInfo

from augury.config import surfaces
from augury.serve.options import API_KEYS, ENGINE, SPECULATION, ServerOptions

__all__ = [
    "API_KEYS",
    "ENGINE",
    "SPECULATION",
    "ServerOptions",
    "SpeculationOptions",
    "options_of",
    "speculation",
    "takes",
]

SHORT = {
    "n": ("--n", "-n"),
    "quantization": ("--quantization", "-q"),
    "speculative_config": ("--speculative-config", "-sc"),
    "tensor_parallel_size": ("--tensor-parallel-size", "-tp"),
}
PLAIN = (str, int, float, bool)
Function = TypeVar("Function", bound=Callable[..., None])


class SpeculationOptions(BaseModel):
    """The speculation options of commands that run a model."""

    speculative_config: str | None = Field(
        None, description="How to speculate, as in vLLM.", json_schema_extra={"metavar": "JSON"}
    )
    spec_method: str | None = Field(None, description="Its 'method'.")
    spec_model: str | None = Field(None, description="Its 'model'.")
    spec_tokens: int | None = Field(None, description="Its 'num_speculative_tokens'.")


def takes(*groups: list[inspect.Parameter]) -> Callable[[Function], Function]:
    """Replace a command's `**given` with these options."""

    def add(function: Function) -> Function:
        own = inspect.signature(function, eval_str=True)
        written = [one for one in own.parameters.values() if one.kind is not one.VAR_KEYWORD]
        parameters = [*written, *(option for group in groups for option in group)]
        function.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
        return function

    return add


def options_of(
    model: type, *names: str, panel: str | None = None, strict: bool = False, **defaults: Any
) -> list[inspect.Parameter]:
    """The fields of a model as options, all or those named; `defaults` replace the model's own.

    Bounds and choices are checked here only if `strict`; otherwise the model refuses them, with the message that
    Python users get.
    """
    fields = model.model_fields if issubclass(model, BaseModel) else _as_fields(model)
    return [_option(name, fields[name], panel, strict, defaults) for name in names or fields]


def _as_fields(model: Any) -> dict[str, FieldInfo]:
    """A dataclass's fields as pydantic FieldInfos."""
    hints = get_type_hints(model)
    return {
        one.name: FieldInfo(annotation=hints[one.name], default=one.default, description=one.metadata.get("help"))
        for one in dataclasses.fields(model)
    }


def _option(
    name: str, field: FieldInfo, panel: str | None, strict: bool, defaults: dict[str, Any]
) -> inspect.Parameter:
    kind, default = _kind(field.annotation, strict), defaults.get(name, field.default)
    extra: dict[str, Any] = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
    limits = {"min": "ge", "max": "le"} if strict else {}
    option: Any = typer.Option(
        *SHORT.get(name, ("--" + name.replace("_", "-"),) if default is False else ()),
        help=field.description,
        metavar=extra.get("metavar") or ("JSON" if _is_object(field.annotation) else None),
        envvar=extra.get("envvar"),
        rich_help_panel=extra.get("panel") or panel,
        **{bound: getattr(one, key) for one in field.metadata for bound, key in limits.items() if hasattr(one, key)},
    )
    annotation: Any = Annotated[kind if default is not None else kind | None, option]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _kind(declared: Any, strict: bool) -> Any:
    """The type on the command line: lists of texts and plain types are kept, objects become JSON text."""
    kinds = list(_parts(declared))
    if list[str] in kinds:
        return list[str]
    if get_origin(kinds[0]) is Literal:
        return kinds[0] if strict else str
    return kinds[0] if kinds[0] in PLAIN else str


def _is_object(declared: Any) -> bool:
    return any(get_origin(kind) is dict for kind in _parts(declared)) or any(
        isinstance(kind, type) and issubclass(kind, BaseModel) for kind in _parts(declared)
    )


def _parts(declared: Any) -> Iterator[Any]:
    if get_origin(declared) in (Union, UnionType):
        yield from (part for part in get_args(declared) if part is not type(None))
    else:
        yield declared


def speculation(given: dict[str, Any]) -> dict[str, Any] | None:
    """Remove the options of SpeculationOptions from `given` and combine them into one speculative_config."""
    text = given.pop("speculative_config")
    shortcuts = {name: given.pop(name) for name in surfaces.SHORTCUTS}
    return surfaces.gather(text, shortcuts, os.environ)
