"""vllm.engine.arg_utils: the arguments of an engine as an object, and as flags of a script's own command line."""

from __future__ import annotations

import argparse
import json
from typing import Any, TypeVar, get_args

from augury.config.engine import EngineConfig

Parser = TypeVar("Parser", bound=argparse.ArgumentParser)
OBJECTS = ("speculative_config", "kv_transfer_config", "hf_overrides")  # JSON on a command line


class EngineArgs:
    """The arguments of `LLM(...)`: `EngineArgs(model="default", max_model_len=2048)`, checked when it is made."""

    def __init__(self, model: str = "default", **arguments: Any) -> None:
        for name in ("disable_log_requests", "enable_log_requests"):  # AsyncEngineArgs': prompts are never logged
            arguments.pop(name, None)
        EngineConfig.parse(model=model, **arguments)
        self._given = {"model": model, **arguments}

    def __getattr__(self, name: str) -> Any:
        given: dict[str, Any] = self.__dict__.get("_given", {})
        if name in given:
            return given[name]
        if name in EngineConfig.model_fields:
            return EngineConfig.model_fields[name].default
        raise AttributeError(f"EngineArgs has no argument {name!r}")

    def arguments(self) -> dict[str, Any]:
        """The arguments that were given, for `LLM`."""
        return dict(self._given)

    @classmethod
    def add_cli_args(cls, parser: Parser) -> Parser:
        """Add a flag for every argument of the engine to a script's parser."""
        for name, field in EngineConfig.model_fields.items():
            flag = "--" + name.replace("_", "-")
            if field.annotation is bool:
                parser.add_argument(flag, dest=name, action=argparse.BooleanOptionalAction, default=None)
            else:
                kind = json.loads if name in OBJECTS else _number(field.annotation)
                parser.add_argument(flag, dest=name, type=kind, default=None, help=field.description)
        return parser

    @classmethod
    def from_cli_args(cls, args: argparse.Namespace) -> EngineArgs:
        """The arguments out of a parsed command line; the script's own flags are left alone."""
        given = {name: getattr(args, name) for name in EngineConfig.model_fields if hasattr(args, name)}
        return cls(**{name: value for name, value in given.items() if value is not None})


class AsyncEngineArgs(EngineArgs):
    """The same, for AsyncLLMEngine."""


def _number(annotation: Any) -> Any:
    """int or float where the argument is one, else text."""
    kinds = get_args(annotation) or (annotation,)
    return next((kind for kind in (int, float) if kind in kinds), str)
