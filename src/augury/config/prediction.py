"""The text a client expects: OpenAI's `prediction`, offline in `extra_args`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from augury.config.errors import ConfigError, shown

KEY = "prediction"
EXAMPLE = '{"type": "content", "content": "..."}'


def read_prediction(extra_args: Mapping[str, Any] | None) -> str | list[int] | None:
    """The expected text of a request's extra arguments, or its token ids; None where nothing is expected."""
    given = (extra_args or {}).get(KEY)
    if given is None:
        return None
    if isinstance(given, Mapping):
        if given.get("type", "content") != "content":
            raise ConfigError(f'{KEY}.type must be "content", got {shown(given["type"])}.')
        if wrong := sorted(map(str, set(given) - {"type", "content"})):
            raise ConfigError(f"{KEY}.{wrong[0]} is unknown; write {EXAMPLE}.")
        given = given.get("content")
    if isinstance(given, str):
        return given
    if isinstance(given, (list, tuple)) and all(isinstance(one, int) and not isinstance(one, bool) for one in given):
        return list(given)
    if isinstance(given, (list, tuple)) and all(_is_text(part) for part in given):
        return "".join(part["text"] for part in given)
    raise ConfigError(f"{KEY} must be a text, text parts or token ids, such as {EXAMPLE}; got {shown(given)}.")


def _is_text(part: object) -> bool:
    return isinstance(part, Mapping) and part.get("type", "text") == "text" and isinstance(part.get("text"), str)


def check_prediction(tokens: list[int], context: int, vocabulary: int) -> None:
    """Refuse a prediction that could never be an answer: longer than the context, or with unknown token ids."""
    if len(tokens) > context:
        raise ConfigError(f"{KEY} has {len(tokens)} tokens but max_model_len is {context}; shorten it.")
    wrong = next((token for token in tokens if not 0 <= token < vocabulary), None)
    if wrong is not None:
        raise ConfigError(f"{KEY}: token id {wrong} is not in the vocabulary; ids go from 0 to {vocabulary - 1}.")
