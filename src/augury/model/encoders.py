"""Multimodal checkpoints: why one of them cannot run, explained by the encoders that it has and we do not support."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from augury.model.errors import ModelError

ENCODERS = {"vision_config": "images", "audio_config": "audio"}  # in config.json: an encoder, and what it reads


@contextmanager
def explained(directory: Path) -> Iterator[None]:
    """If a checkpoint with encoders is refused, name these in the error; other errors pass through unchanged."""
    try:
        yield
    except ModelError as error:
        if not (found := encoders_of(directory)):
            raise
        read, names = " and ".join(dict.fromkeys(found.values())), ", ".join(found)
        raise ModelError(
            f"{directory} reads {read} as well as text ({names} in its config.json); only text is supported here: "
            "neither the encoder nor its position scheme runs. Its text part does not run by itself either "
            f"({str(error).rstrip('.')}); use a text model of its family."
        ) from error


def encoders_of(directory: Path) -> dict[str, str]:
    """The encoders that a checkpoint's config.json names, and what each reads."""
    try:
        raw = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return {name: read for name, read in ENCODERS.items() if isinstance(raw, dict) and isinstance(raw.get(name), dict)}
