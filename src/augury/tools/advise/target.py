"""The target of an advice: a directory, a config.json, a hub id in the local cache, or a well-known name."""

from __future__ import annotations

import json
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

from augury.config.errors import ConfigError
from augury.config.facts import ModelFacts, architectures, read_facts
from augury.tools.advise.shape import ModelShape
from augury.tools.advise.tables import table

NOT_DECODING = ("SequenceClassification", "TokenClassification", "RewardModel", "ForRetrieval", "MaskedLM")
WRITING = ("LMHead", "LMModel", "Chat", "VL", "Omni", "Ultravox")  # generate text although named *Model
MOST_DEVICES = 64
ENCODERS = ("bert", "roberta", "xlm-roberta", "modernbert", "nomic_bert", "new", "clip", "siglip", "t5encoder")


@cache
def known_targets() -> dict[str, dict[str, Any]]:
    """The config.json of well-known targets, by name."""
    found: dict[str, dict[str, Any]] = table("models")
    return found


def find_target(name: str) -> ModelFacts:
    """Facts of a target, by path, hub id or well-known name."""
    path = Path(name).expanduser()
    if _is_file(path):
        return _read_config(path)
    facts = read_facts(name)
    if facts is not None:
        return facts
    plain = name.rpartition("/")[2].lower()
    known = known_targets()
    found = next(
        (key for key in sorted(known, key=len, reverse=True) if plain.replace("meta-", "").startswith(key)), None
    )
    if found is None:
        close = get_close_matches(plain, known, n=3, cutoff=0.4) or list(known)
        raise ConfigError(
            f"--target {name}: no directory with a config.json, no config.json and no name of the table; "
            f"names are {', '.join(close)}."
        )
    return ModelFacts(found, {**known[found], **_quantised(plain)})


def _quantised(name: str) -> dict[str, Any]:
    """The quantization_config that a name implies, as quantised copies on a hub are named; empty if none."""
    if "fp8" in name or "w8a8" in name:
        return {"quantization_config": {"quant_method": "fp8"}}
    if any(word in name for word in ("awq", "gptq", "int4", "w4a16", "4bit")):
        return {"quantization_config": {"quant_method": "awq", "bits": 4}}
    return {}


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def _read_config(path: Path) -> ModelFacts:
    try:
        raw = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"--target {path}: cannot be read as JSON ({' '.join(str(error).split())}).") from None
    if not isinstance(raw, dict):
        raise ConfigError(f"--target {path} is not a JSON object; a model's config.json is needed.")
    return ModelFacts(str(path), raw, path.parent)


def why_not_decoding(facts: ModelFacts) -> str | None:
    """Why a model generates no text; None if it does."""
    names = architectures(facts.raw)
    for name in names:
        if any(part in name for part in NOT_DECODING):
            return f"{name} scores or classifies; it decodes nothing, so there is nothing to speed up"
    writes = any("CausalLM" in name or "ConditionalGeneration" in name for name in names)
    if facts.kind in ENCODERS and not writes:
        return f"{facts.kind} models give embeddings; they decode nothing, so there is nothing to speed up"
    if names and all(name.endswith("Model") and not any(part in name for part in WRITING) for name in names):
        return f"{names[0]} is a bare backbone and gives embeddings: it decodes nothing, there is nothing to speed up"
    return None


def check_parallel(facts: ModelFacts, parallel: int) -> None:
    """vLLM's rule: query heads divide evenly; key heads divide evenly, or are copied evenly where they are fewer."""
    heads = facts.heads
    if parallel == 1 or not heads:
        return
    keys = heads if facts.number("kv_lora_rank") else facts.number("num_key_value_heads") or heads
    if _splits(heads, keys, parallel):
        return
    fitting = [n for n in range(1, min(heads, MOST_DEVICES) + 1) if _splits(heads, keys, n)]
    raise ConfigError(
        f"--tp {parallel}: the target has {heads} attention heads and {keys} key heads, which do not divide by it; "
        f"take {', '.join(map(str, fitting))}."
    )


def _splits(heads: int, keys: int, parallel: int) -> bool:
    return heads % parallel == 0 and (keys % parallel == 0 if keys >= parallel else parallel % keys == 0)


def no_shape(facts: ModelFacts) -> ModelShape:
    """A shape that costs nothing, for a model that will be refused before its cost is asked."""
    return ModelShape(facts.name, 1, 1, 1, 1, 0, 0, 0, True, 1, 1, 1, 0, 0, 2.0, False)
