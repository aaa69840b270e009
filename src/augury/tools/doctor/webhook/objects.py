"""A Kubernetes object written as text for the doctor, with the path of every line."""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

from augury.config.errors import ConfigError

DEEPEST = 100  # levels; the deepest resource known, a graph of services with pod templates, has about twenty
LONGEST_KEY = 500  # letters; YAML reads no key longer than 1,024, and no resource has one longer than 320
PLAIN = re.compile(r"[A-Za-z_][\w-]*")
UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]")


class Written(NamedTuple):
    """A text with one value per line, and the path of each line in the object."""

    text: str
    paths: list[str]

    def path(self, line: int) -> str:
        """The path of a line, counted from 1."""
        return self.paths[min(line, len(self.paths)) - 1].lstrip(".") if self.paths else ""


def written(value: Any) -> Written:
    """The object as JSON that is also YAML; a ConfigError if it is nested more than DEEPEST levels deep."""
    lines: list[tuple[str, str]] = []
    _write(value, "", "", "", lines, 0)
    return Written("\n".join(text for _, text in lines) + "\n", [path for path, _ in lines])


def _write(value: Any, path: str, head: str, tail: str, lines: list[tuple[str, str]], depth: int) -> None:
    if depth > DEEPEST:
        raise ConfigError(f"the object is nested more than {DEEPEST} levels deep; nothing that runs a server is.")
    if isinstance(value, dict) and value:
        pairs = [(f"{_scalar(str(key)[:LONGEST_KEY])}: ", _below(path, str(key)), one) for key, one in value.items()]
        around = "{}"
    elif isinstance(value, list) and value:
        pairs = [("", f"{path}[{i}]", one) for i, one in enumerate(value)]
        around = "[]"
    else:
        lines.append((path, head + _scalar(value) + tail))
        return
    lines.append((path, head + around[0]))
    for i, (lead, below, one) in enumerate(pairs):
        _write(one, below, lead, "," if i + 1 < len(pairs) else "", lines, depth + 1)
    lines.append((path, around[1] + tail))


def _below(path: str, key: str) -> str:
    return f"{path}.{key}" if PLAIN.fullmatch(key) else f"{path}[{json.dumps(key[:80])}]"


def _scalar(value: Any) -> str:
    return UNPRINTABLE.sub(_escaped, json.dumps(value, ensure_ascii=False))


def _escaped(found: re.Match[str]) -> str:
    """Escape a character that YAML reads as a line end or refuses; a lone surrogate becomes U+FFFD."""
    code = ord(found[0])
    return "\ufffd" if 0xD800 <= code <= 0xDFFF else f"\\u{code:04x}"
