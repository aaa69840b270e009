"""speculative_config: vLLM's keys, checked before anything is loaded."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from augury.config.errors import ConfigError
from augury.methods.registry import METHODS, PLANNED
from augury.methods.spec import MAX_NODES, Method


class SpeculativeConfig(BaseModel):
    """How to speculate; build it with `SpeculativeConfig.parse`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    method: str
    num_speculative_tokens: int = Field(gt=0, le=MAX_NODES)
    prompt_lookup_max: int | None = Field(default=None, ge=1)
    prompt_lookup_min: int | None = Field(default=None, ge=1)

    @classmethod
    def parse(cls, given: dict[str, Any] | SpeculativeConfig | None) -> SpeculativeConfig | None:
        """Read the user's dictionary, or say in one line which key is wrong and what to write."""
        if given is None or isinstance(given, SpeculativeConfig):
            return given
        if not isinstance(given, dict):
            raise ConfigError(f"speculative_config must be a dictionary of keys, got {type(given).__name__}.")
        keys = {k.replace("-", "_"): v for k, v in given.items()}
        _check_method(keys)
        try:
            config = cls(**keys)
        except ValidationError as error:
            raise ConfigError(_first_problem(error, cls)) from None
        return config._with_lookup_bounds()

    @property
    def card(self) -> Method:
        """The method's card."""
        return METHODS[self.method]

    def _with_lookup_bounds(self) -> SpeculativeConfig:
        low, high = self.prompt_lookup_min, self.prompt_lookup_max
        low, high = low or high or 5, high or low or 5  # vLLM's defaults: 5 and 5, or each the other's value
        if low > high:
            raise ConfigError(
                f"speculative_config.prompt_lookup_min={low} must be at most prompt_lookup_max={high}; lower the first."
            )
        return self.model_copy(update={"prompt_lookup_min": low, "prompt_lookup_max": high})


def _check_method(keys: dict[str, Any]) -> None:
    if keys.get("method") is None and keys.get("model") in ("ngram", "[ngram]"):
        keys["method"] = "ngram"
        del keys["model"]
    method = keys.get("method")
    if method in METHODS:
        if keys.get("model") in (method, f"[{method}]"):
            del keys["model"]
        return
    known = ", ".join(METHODS)
    if method is None:
        raise ConfigError(f"speculative_config.method is missing; methods that run today: {known}.")
    if method in PLANNED:
        raise ConfigError(f"speculative_config.method={method!r} is planned, not built yet; what runs today: {known}.")
    close = get_close_matches(str(method), [*METHODS, *PLANNED], n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"methods that run today: {known}."
    raise ConfigError(f"speculative_config.method={method!r} is unknown; {hint}")


def _first_problem(error: ValidationError, model: type[BaseModel]) -> str:
    # A misspelt key shows up twice, as unknown and as missing; the first says more.
    problem = min(error.errors(), key=lambda e: e["type"] != "extra_forbidden")
    key = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        close = get_close_matches(key, list(model.model_fields), n=1, cutoff=0.6)
        return f"speculative_config.{key} is unknown; " + (f"did you mean {close[0]!r}?" if close else "remove it.")
    if problem["type"] == "missing":
        return f"speculative_config.{key} is missing; give it a value, for example {{'{key}': 4}}."
    return f"speculative_config.{key}={problem['input']!r}: {problem['msg'].lower()}."
