"""`--collect DIR`: saves the token ids of answers, to train a drafter on them.

Off by default, because prompts are private. Every tenant has a file of its own, readable by the server's user alone,
and nothing is written above the limit of tokens. A disk error ends the collecting, never an answer. A client may send
a new `cache_salt` with every request, so at most OPEN files are open, and tenants after the first FILES share one.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections import OrderedDict
from pathlib import Path
from typing import TextIO

from augury.config.errors import ConfigError
from augury.config.files import write_text
from augury.config.fingerprint import fingerprint, name_of
from augury.engine.request import Request

logger = logging.getLogger("augury")
ABOUT = "about.json"
FILES, OPEN = 1024, 16  # files in the directory, and those that are open
ENDED = ("stop", "length")  # how a complete answer ends


class Collector:
    """Writes a line for every answer: its token ids, where the answer begins, whether it was sampled."""

    def __init__(self, directory: Path, most_tokens: int, target: Path) -> None:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._directory, self._files = directory, OrderedDict[str, TextIO]()  # the least recently used first
        self._left = most_tokens - sum(_tokens_in(file) for file in directory.glob("*.jsonl"))
        self._names = {file.stem for file in directory.glob("*.jsonl")}
        self._claim(target)

    def _claim(self, target: Path) -> None:
        """Record the target in the directory; answers of two targets must not be mixed."""
        about, file = {"target": name_of(target), "fingerprint": fingerprint(target)}, self._directory / ABOUT
        if file.is_file() and (other := _read_about(file)) != about:
            raise ConfigError(f"--collect {self._directory}: it holds answers of {other.get('target')}; name another.")
        write_text(file, json.dumps(about) + "\n")

    def keep(self, request: Request) -> None:
        """Write down a complete answer, if it fits the limit of tokens."""
        if self._left < len(request.tokens) or request.finish_reason not in ENDED:
            return
        sampled = request.params.temperature > 0
        line = {"tokens": request.tokens, "start": request.prompt_len, "sampled": sampled}
        try:
            file = self._file(request.tenant)
            file.write(json.dumps(line, separators=(",", ":")) + "\n")
            file.flush()
        except OSError as error:
            logger.error("nothing more is collected in %s: %s", self._directory, error)
            self._left = 0
            return
        self._left -= len(request.tokens)
        if self._left < 1:
            logger.warning("as many tokens are collected in %s as were asked for.", self._directory)

    def _file(self, tenant: str) -> TextIO:
        name = hashlib.sha256(tenant.encode()).hexdigest()[:16] if tenant else "everyone"
        if name not in self._names and len(self._names) >= FILES:
            name = "others"
        self._names.add(name)
        if name not in self._files:
            descriptor = os.open(self._directory / f"{name}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            self._files[name] = os.fdopen(descriptor, "a", encoding="ascii")
            if len(self._files) > OPEN:
                self._files.popitem(last=False)[1].close()
        self._files.move_to_end(name)
        return self._files[name]


def _read_about(file: Path) -> dict[str, str]:
    try:
        about: dict[str, str] = json.loads(file.read_text(encoding="utf-8"))
        about.get("target")
    except (OSError, ValueError, AttributeError):
        raise ConfigError(
            f"--collect {file.parent}: its {ABOUT} cannot be read, so the target of these answers is unknown; remove "
            "it if they are this target's, or name another directory."
        ) from None
    return about


def _tokens_in(file: Path) -> int:
    with file.open(encoding="ascii", errors="replace") as lines:
        return sum(line.count(",") - 1 for line in lines)  # between tokens, and before the two other keys
