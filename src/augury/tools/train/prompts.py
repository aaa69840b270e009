"""Prompts for training, from common data set files: lines, JSON, JSONL, CSV. Answers in them are ignored."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from augury.config.errors import ConfigError

Messages = list[dict[str, str]]
ASKED = ("prompt", "question", "instruction", "text", "query", "task", "problem")  # fields that hold the question
LONE = re.compile("[\ud800-\udfff]")
ALL_HELD = "--prompts: every prompt is held out too; nothing is left to train on."
END = "\x1e"  # an extra line appended to a table
TALKS = ("messages", "conversations", "turns")  # fields that hold a whole conversation


def read_prompts(paths: list[Path], option: str = "--prompts") -> list[Messages]:
    """The first question of every record of every file, without duplicates; errors name the files by `option`."""
    found = {json.dumps(messages): messages for path in paths for messages in _read(path, option)}
    if not found:
        raise ConfigError(f"{option} {', '.join(map(str, paths))}: no prompt in it.")
    return list(found.values())


def _read(path: Path, option: str) -> Iterator[Messages]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{option} {path}: {getattr(error, 'strerror', None) or 'not UTF-8 text'}.") from None
    for number, record in enumerate(_records(path, text, option), 1):
        messages = first_question(record)
        if messages is None:
            known = ", ".join((*ASKED, *TALKS))
            raise ConfigError(f"{option} {path}, record {number}: no field that asks something; known are {known}.")
        if any(LONE.search(message["content"]) for message in messages):
            raise ConfigError(
                f"{option} {path}, record {number}: a lone surrogate, which is not a character; remove it."
            )
        yield messages


def _records(path: Path, text: str, option: str) -> Iterator[Any]:
    try:
        if path.suffix == ".csv":
            yield from _table(text)
        elif text.lstrip()[:1] == "[" and path.suffix != ".jsonl":
            yield from json.loads(text)
        elif text.lstrip()[:1] in ("{", "[", '"'):
            yield from (json.loads(line) for line in text.splitlines() if line.strip())
        else:
            yield from (line.strip() for line in text.splitlines() if line.strip())
    except csv.Error as error:
        raise ConfigError(f"{option} {path}: not CSV ({error}).") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{option} {path}: not JSON ({error}).") from None


def _table(text: str) -> list[dict[str, Any]]:
    """The rows of a CSV file; stray quotes inside a field are kept, and a quote that is never closed is refused,
    which is detected because it swallows the extra line added here."""
    lines = text.splitlines(keepends=True)
    if lines and not lines[-1].endswith(("\n", "\r")):
        lines[-1] += "\n"
    *rows, last = csv.reader([*lines, END])
    if last != [END]:
        raise csv.Error("a quote is opened and never closed")
    return list(csv.DictReader(lines)) if rows else []


def first_question(record: Any) -> Messages | None:
    """A record's first question, preceded by its system message if any; None if it has no question."""
    if isinstance(record, str):
        return [{"role": "user", "content": record}] if record.strip() else None
    if isinstance(record, list):
        return _first_turn(record)
    if not isinstance(record, dict):
        return None
    for name in TALKS:
        if isinstance(record.get(name), list) and record[name]:
            return _first_turn(record[name])
    asked = next((record[name] for name in ASKED if isinstance(record.get(name), str) and record[name].strip()), None)
    more = record.get("input")
    whole = f"{asked}\n\n{more}" if asked and isinstance(more, str) and more.strip() else asked
    return [{"role": "user", "content": whole}] if whole else None


def _first_turn(turns: list[Any]) -> Messages | None:
    if isinstance(turns[0] if turns else None, str):
        return [{"role": "user", "content": turns[0]}]
    found: Messages = []
    for turn in turns:
        role = str(turn.get("role") or turn.get("from") or "") if isinstance(turn, dict) else ""
        content = (turn.get("content") or turn.get("value")) if isinstance(turn, dict) else None
        if not isinstance(content, str) or role not in ("system", "user", "human"):
            return None
        found.append({"role": "system" if role == "system" else "user", "content": content})
        if role != "system":
            return found
    return None
