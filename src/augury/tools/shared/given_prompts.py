"""Prompts given to a command: by its argument, a file, or standard input."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from augury.config.errors import ConfigError

GivenPrompt = str | list[dict[str, Any]]  # a text, or a conversation


def gather(prompt: str | None, file: Path | None) -> list[GivenPrompt]:
    """The prompts: from the argument, a file, or standard input, in that order."""
    if prompt not in (None, "-") and file is not None:
        raise ConfigError("give a prompt or --prompts-file, not both.")
    if file is not None:
        return _read_file(file)
    if prompt is not None and prompt != "-":
        return [prompt]
    if sys.stdin is None or sys.stdin.isatty():
        raise ConfigError('no prompt; write `augury generate "your question"`, pipe one in, or use --prompts-file.')
    try:
        text = sys.stdin.read()
    except UnicodeDecodeError:
        raise ConfigError("standard input is not text (it must be UTF-8).") from None
    if not text.strip():
        raise ConfigError("standard input held no prompt.")
    return [text.rstrip("\n")]


def _read_file(file: Path) -> list[GivenPrompt]:
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--prompts-file {file}: {getattr(error, 'strerror', None) or 'not a text file'}.") from None
    as_jsonl = file.suffix.lower() in (".jsonl", ".ndjson") or (lines and lines[0].lstrip().startswith("{"))
    asked = [_record(file, i, line) if as_jsonl else line for i, line in enumerate(lines, 1) if line.strip()]
    if not asked:
        raise ConfigError(f"--prompts-file {file}: no prompts in it.")
    return asked


def _record(file: Path, number: int, line: str) -> GivenPrompt:
    """One line of JSONL: {"prompt": text} or {"messages": [{"role", "content"}, ...]}."""
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{file}, line {number}: not JSON ({error.msg}).") from None
    found = record.get("messages", record.get("prompt")) if isinstance(record, dict) else None
    if isinstance(found, str) or (isinstance(found, list) and found and all(map(_is_message, found))):
        return found
    raise ConfigError(f'{file}, line {number}: needs "prompt" (a text) or "messages" (a list of role and content).')


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("role"), str) and isinstance(value.get("content"), str)
