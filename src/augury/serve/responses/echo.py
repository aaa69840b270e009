"""Limits on what a response repeats of its request and keeps of a conversation: checked before any of it is written.

Values are counted as well as characters, since an empty list is two characters of JSON and takes 56 bytes in memory.
"""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from augury.serve.errors import ApiError

PAIRS, KEY, VALUE = 16, 64, 512  # of metadata, as OpenAI has it
REPEATED = ("tools", "tool_choice", "text", "reasoning")
MOST_CHARACTERS, MOST_VALUES = 1 << 20, 1 << 16  # of each field that is repeated
CONVERSATION = 1 << 17  # values of all items; their text is bounded by what the model takes
_dumps = partial(json.dumps, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def written(value: Any) -> bytes:
    """JSON in UTF-8; raises ValueError for what cannot be written so."""
    return _dumps(value).encode()


def written_items(items: list[dict[str, Any]]) -> bytes:
    """A list as JSON, written item by item: one call for all would hold the GIL as long as it runs."""
    return b"[" + b",".join(map(written, items)) + b"]"


def measured(value: Any, most_values: int, most_characters: int) -> int | None:
    """About how many bytes of JSON a value comes to; None, as soon as that is known, if it holds too much."""
    values = characters = 0
    left = [value]
    while left:
        one = left.pop()
        values += 1
        if isinstance(one, dict):
            left += one.values()
            characters += sum(map(len, one))
        elif isinstance(one, list):
            left += one
        else:
            characters += len(one) if isinstance(one, str) else 4
        if values + len(left) > most_values or characters > most_characters:
            return None
    return characters + 2 * values


def check_echo(asked: Any) -> int:
    """Refuse a request whose response would repeat too much; returns about how many bytes it repeats."""
    _check_metadata(asked.metadata)
    size = len(asked.instructions or "")
    for name in REPEATED:
        found = measured(getattr(asked, name), MOST_VALUES, MOST_CHARACTERS)
        if found is None:
            why = f"it may hold {MOST_CHARACTERS} characters and {MOST_VALUES} values; the response repeats it."
            raise ApiError(400, f"{name}: {why}", name)
        size += found
    return size


def check_conversation(items: list[dict[str, Any]]) -> int:
    """Refuse a conversation of too many values; returns about how many bytes it has."""
    found = measured(items, CONVERSATION, 1 << 62)
    if found is None:
        raise ApiError(400, f"input: the conversation may hold {CONVERSATION} values.", "input")
    return found


def _check_metadata(metadata: dict[str, Any] | None) -> None:
    given = metadata or {}
    if len(given) > PAIRS:
        raise ApiError(400, f"metadata: it has {len(given)} pairs; at most {PAIRS}.", "metadata")
    for key, value in given.items():
        if len(key) > KEY or not isinstance(value, str) or len(value) > VALUE:
            why = f"keys are texts of at most {KEY} characters, and values are texts of at most {VALUE}"
            raise ApiError(400, f"metadata: {why}.", "metadata")
