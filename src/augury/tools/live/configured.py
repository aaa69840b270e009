"""The configuration of a live server as the doctor reads it: its facts, its keys and the findings."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from augury.config.errors import ConfigError
from augury.tools.doctor.examine import CheckedAgainst, Examination, examine
from augury.tools.doctor.findings import Finding

LARGEST = 2_000_000  # bytes; larger files are not hand-written


@dataclass(frozen=True, slots=True)
class Configured:
    """What a command or a file says about the server."""

    written: str  # as the user gave it: a file's name, or the text
    facts: Mapping[str, Any] = field(default_factory=dict)
    keys: Mapping[str, Any] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()

    @property
    def command(self) -> str:
        """The argument to pass to `augury doctor`, quoted for a shell."""
        return shlex.quote(self.written)


def configured(written: str, release: str | None, option: str = "--config", plugged: bool = False) -> Configured:
    """Read the command in a file or a text; of several, the first that speculates."""
    name, text = _text(written, option)
    examination: Examination = examine(text, name, CheckedAgainst(release, plugged=plugged))
    if not examination.commands:
        raise ConfigError(f"{option}: no `vllm serve`, `augury serve` or speculative_config in {_short(written)}.")
    chosen = next((c for c in examination.commands if c.facts.get("speculates")), examination.commands[0])
    known = {fact: value for fact, value in chosen.facts.items() if value is not None}
    if chosen.named_by == "nobody":  # the doctor assumed the newest release, which says nothing about this server
        known = {fact: value for fact, value in known.items() if fact not in ("version", "old_runner", "runs_async")}
    findings = tuple(chosen.findings)
    broken = [finding.message for finding in findings if finding.id.startswith("json-") and finding.severity == "error"]
    if broken and text.lstrip().startswith(("{", "[")):  # the text is bare JSON, which no server can have started with
        raise ConfigError(f"{option} {_short(written)}: {broken[0]}.")
    return Configured(written, known | {"findings": [finding.id for finding in findings]}, chosen.keys, findings)


def _text(written: str, option: str) -> tuple[str, str]:
    if any(letter in written for letter in " \n\t{"):
        return "", written
    try:
        with Path(written).open("rb") as file:
            return written, file.read(LARGEST).decode()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not a text in UTF-8"
        raise ConfigError(f"{option} {_short(written)}: {reason}; name a file, or give the command itself.") from None


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."
