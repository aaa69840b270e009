"""The command that a log repeats: vLLM writes the arguments that are not its defaults in one line."""

from __future__ import annotations

import ast
import json
import re
import shlex
from collections.abc import Mapping
from typing import Any

ARGS = re.compile(r"non-default args: (\{.*\})\s*$")
MODEL = ("model", "model_tag")


def read_args(line: str) -> dict[str, Any] | None:
    """The arguments as they were given; None of a line that has none, or has objects in it that are no literals."""
    found = ARGS.search(line)
    if not found:
        return None
    try:
        read = ast.literal_eval(found[1])
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    return read if isinstance(read, dict) and all(isinstance(name, str) for name in read) else None


def command_of(args: Mapping[str, Any]) -> str:
    """The same as a command that the doctor reads."""
    model = next((str(args[name]) for name in MODEL if args.get(name)), "MODEL")
    words = ["vllm", "serve", model]
    for name, value in args.items():
        flag = f"--{name.replace('_', '-')}"
        if name in MODEL or value is None:
            continue
        if isinstance(value, bool):
            words += [flag if value else f"--no-{flag[2:]}"]
        elif isinstance(value, (dict, list)) and (
            isinstance(value, dict) or not all(isinstance(v, str) for v in value)
        ):
            words += [flag, json.dumps(value, default=str)]
        else:
            words += [flag, *(map(str, value) if isinstance(value, list) else [str(value)])]
    return shlex.join(words)
