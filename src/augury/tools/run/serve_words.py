"""Adapts a command line written for `vllm serve`: lists after one flag, and flags without effect here."""

from __future__ import annotations

import json
import sys
from typing import Any

from augury.config import harmless
from augury.config.engine import NOT_YET, check_neutral
from augury.config.errors import ConfigError

LISTS = ("--served-model-name", "--api-key", "--lora-modules")  # several values may follow one flag
MODEL = ("--model", "--model-tag")
SHORT = {"-pp": "pipeline_parallel_size", "-dp": "data_parallel_size"}
SWITCHES = ("fully_sharded_loras", "async_scheduling", "skip_tokenizer_init", *harmless.SWITCHES)
NEUTRAL = {**NOT_YET, "skip_tokenizer_init": (False,)}  # a server returns text
# Flags that ask for what is always the case here.
NOTHING = (
    "--disable-log-requests",
    "--no-enable-log-requests",
    "--disable-uvicorn-access-log",
    "--no-enable-lora",
    "--no-trust-remote-code",
    "--no-async-scheduling",
)


def from_vllm(words: list[str]) -> list[str]:
    """The equivalent words for `augury serve`, without flags that are only checked here or have no effect."""
    kept: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        flag, given, value = word.partition("=")
        name = SHORT.get(flag) or flag.removeprefix("--").replace("-", "_")
        if flag in NOTHING:
            continue
        if flag.startswith("-") and name in NEUTRAL:
            check_neutral(name, _value(flag, name, value if given else None, rest), NEUTRAL)
        elif flag in MODEL:
            model = value if given else _following(flag, rest)
            kept[1:1] = [] if _has_model(words) else [model]  # from a file, or vLLM's old way to name it
        elif flag.startswith("-") and name in harmless.HARMLESS | harmless.FLAGS:
            if _value(flag, name, value if given else None, rest) not in (None, False, {}):
                print(f"note: {harmless.remark(flag)}", file=sys.stderr)
        elif flag in LISTS and not given and _has_model(words):
            while rest and not rest[0].startswith("-"):
                kept += [flag, rest.pop(0)]
        else:
            kept.append(word)
    return kept


def _following(flag: str, rest: list[str]) -> str:
    if not rest:
        raise ConfigError(f"{flag} needs a value.")
    return rest.pop(0)


def _has_model(words: list[str]) -> bool:
    """Whether the model comes before all flags; after a list flag it would be taken for one of its values."""
    return len(words) > 1 and not words[1].startswith("-")


def _value(flag: str, name: str, given: str | None, rest: list[str]) -> Any:
    if given is None:
        if name in SWITCHES:
            return True
        given = _following(flag, rest)
    try:
        return json.loads(given)
    except ValueError:
        return given
