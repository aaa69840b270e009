"""Sampling defaults that a model brings in its generation_config.json, as vLLM takes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from augury.config.errors import ConfigError
from augury.config.sampling import SamplingParams
from augury.model.errors import ModelError
from augury.serve.openai import CompletionRequest, Generation

FILE = "generation_config.json"
TAKEN = ("repetition_penalty", "temperature", "top_k", "top_p", "min_p")


class Defaults:
    """Values for requests that set none of their own; empty if the model brings none."""

    def __init__(self, values: dict[str, Any] | None = None, longest: int | None = None) -> None:
        self.values = values or {}
        self.longest = longest  # most tokens of any answer

    def __str__(self) -> str:
        said = dict(self.values) if self.longest is None else {**self.values, "max_tokens": self.longest}
        return ", ".join(f"{name} {value}" for name, value in said.items())

    @classmethod
    def read(cls, choice: str, model: Path) -> Defaults:
        """Read as --generation-config says: `auto` is the model's own file, `vllm` none, anything else a directory."""
        if choice == "vllm":
            return cls()
        path = (model if choice == "auto" else Path(choice)) / FILE
        if choice == "auto" and not path.is_file():
            return cls()
        try:
            found = json.loads(path.read_text())
            values = {name: found[name] for name in TAKEN if found.get(name) is not None}
            longest = found.get("max_new_tokens")
            SamplingParams(**values, max_tokens=longest)
        except (OSError, ValueError, TypeError, AttributeError, ConfigError) as error:
            why = " ".join(str(error).split())
            raise ModelError(f"{path} cannot be used: {why}; --generation-config vllm leaves it out.") from None
        return cls(values, longest)

    def fill(self, request: Generation) -> None:
        """Set the defaults where a request has none of its own, and cap the length of its answers."""
        for name, value in self.values.items():
            if getattr(request, name) is None:
                setattr(request, name, value)
        if self.longest is None:
            return
        given = False
        for name in ("max_tokens", "max_completion_tokens", "max_output_tokens"):
            if (most := getattr(request, name, None)) is not None:
                setattr(request, name, min(most, self.longest))
                given = True
        if not given:  # a completion has vLLM's default of 16
            request.max_tokens = min(16, self.longest) if isinstance(request, CompletionRequest) else self.longest
