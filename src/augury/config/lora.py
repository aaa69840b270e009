"""LoRA adapters as users name them: vLLM's LoRARequest, and `--lora-modules`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from augury.config.errors import ConfigError

FORM = 'write name=path, or {"name": ..., "path": ...}'


@dataclass(frozen=True, slots=True)
class LoRARequest:
    """Which adapter answers a prompt: a name for people, a number from 1 up, and the directory of its files."""

    lora_name: str
    lora_int_id: int
    lora_path: str = ""
    base_model_name: str | None = None
    load_inplace: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.lora_int_id, int) or self.lora_int_id < 1:
            raise ConfigError(f"lora_int_id must be an integer of at least 1, got {self.lora_int_id!r}.")
        if not self.lora_name or not isinstance(self.lora_name, str):
            raise ConfigError("lora_name must be a name.")
        if not self.lora_path:
            raise ConfigError(f"lora_request {self.lora_name!r}: lora_path must name the directory of its files.")


def read_modules(given: list[str] | None) -> dict[str, str]:
    """The paths of adapters by name, from what follows --lora-modules."""
    found: dict[str, str] = {}
    for text in given or ():
        name, path = _module(text)
        if name in found:
            raise ConfigError(f"--lora-modules: {name!r} is given twice.")
        found[name] = path
    return found


def _module(text: str) -> tuple[str, str]:
    value: Any = None
    if text.lstrip().startswith("{"):
        try:
            value = json.loads(text)
        except ValueError as error:
            raise ConfigError(f"--lora-modules {text}: not JSON ({error}); {FORM}.") from None
        name, path = value.get("name"), value.get("path")
    else:
        name, _, path = text.partition("=")
    if not (isinstance(name, str) and name and isinstance(path, str) and path):
        raise ConfigError(f"--lora-modules {text}: {FORM}.")
    return name, path
