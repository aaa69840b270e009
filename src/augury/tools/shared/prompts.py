"""Prompts for measurements: the sets of `prompts.yml`, or a file."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from augury.config.errors import ConfigError


@dataclass(frozen=True, slots=True)
class BenchPrompt:
    """A question, and the first words of the answer if they are given."""

    user: str
    answer: str = ""

    def messages(self) -> list[dict[str, Any]]:
        """The messages for a chat template."""
        asked = [{"role": "user", "content": self.user}]
        return [*asked, {"role": "assistant", "content": self.answer}] if self.answer else asked

    def template_options(self) -> dict[str, bool]:
        """Chat template options that continue the begun answer, or begin a new one."""
        return {"continue_final_message": True} if self.answer else {"add_generation_prompt": True}


def _edit(ask: str, text: str, begun: str, language: str = "") -> BenchPrompt:
    """A prompt that asks for a text with one change; the answer is begun up to and including `begun` in the text."""
    at = text.index(begun) + len(begun)
    fence = f"```{language}\n" if language else ""
    close = "\n```" if language else ""
    return BenchPrompt(f"{fence}{text}{close}\n\n{ask}", f"{fence}{text[:at]}")


def _built_in() -> dict[str, tuple[BenchPrompt, ...]]:
    written = yaml.safe_load(resources.files("augury.tools.shared").joinpath("prompts.yml").read_text(encoding="utf-8"))
    return {
        "chat": tuple(BenchPrompt(question) for question in written["chat"]),
        "edit": tuple(_edit(**edit) for edit in written["edit"]),
    }


SETS = _built_in()


def load_prompts(name: str) -> tuple[BenchPrompt, ...]:
    """A built-in set by name, or a file with a prompt per line: plain text, or JSON with `user` and maybe `answer`."""
    if name in SETS:
        return SETS[name]
    path = Path(name)
    if not path.is_file():
        raise ConfigError(f"--prompts {name}: neither a file nor one of the built-in sets ({', '.join(SETS)}).")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise ConfigError(f"--prompts {name}: the file is not UTF-8; save it as UTF-8 text.") from None
    prompts = tuple(_read(line, path) for line in text.splitlines() if line.strip())
    if not prompts:
        raise ConfigError(f"--prompts {name}: the file holds no prompt; write one a line.")
    return prompts


def _read(line: str, path: Path) -> BenchPrompt:
    if not line.lstrip().startswith("{"):
        return BenchPrompt(line.strip())
    try:
        entry = json.loads(line)
        return BenchPrompt(entry.get("user") or entry["prompt"], entry.get("answer", ""))
    except (ValueError, KeyError):
        raise ConfigError(f'--prompts {path}: cannot read {line[:60]!r}; write {{"user": "..."}} a line.') from None
