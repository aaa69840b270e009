"""The command that a log repeats: vLLM logs its non-default arguments on one line."""

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
    """The arguments on a log line; None if it has none, or if they include objects that are not literals."""
    found = ARGS.search(line)
    if not found:
        return None
    try:
        read = ast.literal_eval(found[1])
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    return read if isinstance(read, dict) and all(isinstance(name, str) for name in read) else None


def command_of(args: Mapping[str, Any]) -> str:
    """The arguments as a command that the doctor can read."""
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
