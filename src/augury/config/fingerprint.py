"""A short identifier of the model in a directory; drafters record that of the target they were trained for."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

HEAD = 1 << 20  # bytes of a weights file that are read


def fingerprint(directory: Path) -> str:
    """A digest of the GGUF file it was converted from, else of its configuration and its weights' sizes and heads."""
    source = _source(directory)
    if "sha256" in source:
        return f"gguf-{source['sha256'][:16]}"
    found = hashlib.sha256((directory / "config.json").read_bytes())
    for file in sorted(directory.glob("*.safetensors")):
        with file.open("rb") as weights:
            found.update(f"{file.name} {file.stat().st_size}".encode() + weights.read(HEAD))
    return f"files-{found.hexdigest()[:16]}"


def name_of(directory: Path) -> str:
    """The model's name for messages."""
    return Path(str(_source(directory).get("path") or directory.name)).stem


def _source(directory: Path) -> dict[str, str]:
    """What the manifest of a conversion says about its GGUF file; empty if there is none."""
    try:
        told = json.loads((directory / "augury.json").read_text(encoding="utf-8"))["source"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return told if isinstance(told, dict) else {}
