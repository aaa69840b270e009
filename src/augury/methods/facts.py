"""What is known of a target and of a drafter: their config.json, by the names that the checks use."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

MARK = "augury_target"  # key by which a drafter says which target it was trained for


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """A model's config.json, by the names that the checks use."""

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

    @property
    def tokens(self) -> dict[str, int]:
        """Its tokenizer's table; empty when it cannot be read."""
        try:
            assert self.directory is not None
            found = json.loads((self.directory / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]
        except (AssertionError, OSError, ValueError, KeyError, TypeError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}


def architectures(raw: Mapping[str, Any]) -> tuple[str, ...]:
    """The classes that a config.json lists; empty if it has no list."""
    found = raw.get("architectures")
    return tuple(map(str, found)) if isinstance(found, list) else ()


class TargetInfo(NamedTuple):
    """The model that is being sped up, as far as it is known."""

    name: str | None = None
    facts: ModelFacts | None = None
    tensor_parallel_size: int | None = None
    max_model_len: int | None = None

    @property
    def raw(self) -> Mapping[str, Any]:
        """Its config.json, or nothing."""
        return self.facts.raw if self.facts else {}
