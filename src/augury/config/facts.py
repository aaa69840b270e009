"""What a checkpoint says of itself: its config.json, read without loading a weight or importing a library."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from augury.config.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """A model's config.json, by the words the checks use."""

    name: str
    raw: Mapping[str, Any]
    directory: Path | None = None

    @property
    def text(self) -> Mapping[str, Any]:
        """The language model's part, where a model has several; a speculators checkpoint nests it too."""
        for part in ("text_config", "transformer_layer_config", "llm_config"):
            inner = self.raw.get(part)
            if isinstance(inner, Mapping):
                return inner
        return self.raw

    @property
    def kind(self) -> str:
        """Its model_type."""
        return str(self.raw.get("model_type", ""))

    @property
    def architectures(self) -> tuple[str, ...]:
        """Its architectures."""
        return architectures(self.raw)

    def number(self, *names: str) -> int | None:
        """The first of these that is a whole number, in the model's own part or at the top."""
        for name in names:
            for place in (self.text, self.raw):
                value = place.get(name)
                if isinstance(value, int) and not isinstance(value, bool):
                    return value
        return None

    @property
    def vocab_size(self) -> int | None:
        """Tokens it knows."""
        return self.number("vocab_size")

    @property
    def hidden_size(self) -> int | None:
        """Width of its residual stream."""
        return self.number("hidden_size", "n_embd")

    @property
    def layers(self) -> int | None:
        """Decoder layers."""
        return self.number("num_hidden_layers", "n_layer")

    @property
    def heads(self) -> int | None:
        """Query heads."""
        return self.number("num_attention_heads", "n_head")

    @property
    def context(self) -> int | None:
        """Longest text it was built for."""
        return self.number("max_position_embeddings", "n_positions", "model_max_length")


def architectures(raw: Mapping[str, Any]) -> tuple[str, ...]:
    """The classes a config.json names, whatever else may stand there."""
    found = raw.get("architectures")
    return tuple(map(str, found)) if isinstance(found, list) else ()


class Target(NamedTuple):
    """The model that is being sped up, as far as it is known."""

    name: str | None = None
    facts: ModelFacts | None = None
    tensor_parallel_size: int | None = None
    max_model_len: int | None = None

    @property
    def raw(self) -> Mapping[str, Any]:
        """Its config.json, or nothing."""
        return self.facts.raw if self.facts else {}


def read_facts(model: str, revision: str | None = None) -> ModelFacts | None:
    """Facts of a directory, or of a hub id that lies in the local hub cache; None when neither is there."""
    directory = find(model, revision)
    if directory is None:
        return None
    file = directory / "config.json"
    try:
        raw = json.loads(file.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{file} cannot be read ({error}); mend it or name another checkpoint.") from None
    if not isinstance(raw, dict):
        raise ConfigError(f"{file} holds no object; a model's config.json is needed.")
    return ModelFacts(model, raw, directory)


def find(model: str, revision: str | None = None) -> Path | None:
    """Where a checkpoint lies on this machine; a revision is the hub's, a directory has none."""
    path = Path(model).expanduser() if is_local(model) else None
    return path if path is not None and path.is_dir() else _in_hub_cache(model, revision)


def is_local(model: str) -> bool:
    """Whether a name is that of something on this machine's disk."""
    try:
        return Path(model).expanduser().exists()
    except (OSError, ValueError, RuntimeError):  # no name a file system would take
        return False


def _in_hub_cache(model: str, revision: str | None) -> Path | None:
    home = os.environ.get("HF_HOME", "~/.cache/huggingface")
    cache = Path(os.environ.get("HF_HUB_CACHE", f"{home}/hub")).expanduser()
    if model.count("/") != 1 or "\0" in model:
        return None
    folder = cache / f"models--{model.replace('/', '--')}"
    try:
        if revision is not None:
            named = folder / "refs" / revision  # a branch or a tag; a commit has a snapshot of its own name
            snapshot = folder / "snapshots" / (named.read_text().strip() if named.is_file() else revision)
            return snapshot if (snapshot / "config.json").is_file() else None
        found = sorted((folder / "snapshots").glob("*/config.json"))
    except (OSError, ValueError):
        return None
    return found[-1].parent if found else None
