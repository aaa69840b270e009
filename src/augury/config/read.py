"""Reading what a user wrote: names, obsolete keys and values, types and ranges; nothing is decided yet."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, NamedTuple

from pydantic import TypeAdapter, ValidationError

from augury.config.errors import ConfigError, shown
from augury.config.history import FILLED_IN, DroppedKeys, refuse_traps, renew_values
from augury.config.keys import OWN, ConfigKey, declared
from augury.config.releases import at_release, forgives
from augury.config.speculative import SpeculativeConfig
from augury.config.validate import validated
from augury.config.versions import release, valid_in
from augury.methods.draft_model import DRAFT_MODEL
from augury.methods.notes import Note
from augury.methods.suffix import SUFFIX

EXAMPLE = '{"method": "ngram", "num_speculative_tokens": 4}'
KEYS = {**declared(SpeculativeConfig), **declared(DroppedKeys)}
ELSEWHERE = {
    **dict.fromkeys(("temperature", "top_p", "top_k", "seed"), "a sampling parameter"),
    **dict.fromkeys(("gpu_memory_utilization", "max_num_seqs", "dtype"), "an argument of the engine"),
}
AUTO = Note("inferred", "adaptive", "true, because num_speculative_tokens is 'auto'.", refused=True)
COMMON_SLIPS = {  # too far from the right name for a spelling check
    "k": "num_speculative_tokens",
    "num_tokens": "num_speculative_tokens",
    "spec_tokens": "num_speculative_tokens",
    DRAFT_MODEL.name: "model",
    "speculative_model": "model",
    "draft_tp": "draft_tensor_parallel_size",
    "ngram_max": "prompt_lookup_max",
    "ngram_min": "prompt_lookup_min",
}


class ReadConfig(NamedTuple):
    """A configuration as it was written: today's keys with their types, those that vLLM has dropped, and notes."""

    keys: Mapping[str, Any]
    dropped: DroppedKeys
    notes: tuple[Note, ...]


def read(given: Mapping[str, Any], as_of: str | None) -> ReadConfig:
    """Read a dictionary, or say in one line which key is wrong and what to write."""
    keys, notes = _clean_names(given, as_of)
    if as_of is None and keys.get("num_speculative_tokens") == "auto":
        keys, notes = {**keys, "adaptive": True}, (*notes, AUTO)
        del keys["num_speculative_tokens"]
    refuse_traps(keys)
    keys = {name: value for name, value in keys.items() if name in KEYS}
    if as_of is not None:
        keys, said = at_release(keys, KEYS, as_of)
        notes += said
        keys, said = _unread(keys)
        notes += said
    keys, said = renew_values(keys)
    old = {name: value for name, value in keys.items() if name in DroppedKeys.model_fields}
    new = {name: value for name, value in keys.items() if name not in old}
    dropped, typed = validated(DroppedKeys, old), validated(SpeculativeConfig, new)
    return ReadConfig({k: getattr(typed, k) for k, value in new.items() if value is not None}, dropped, (*notes, *said))


def _unread(keys: dict[str, Any]) -> tuple[dict[str, Any], tuple[Note, ...]]:
    """Leave out the suffix method's settings where another is meant: vLLM checks their range with that method only.

    One of a wrong type stays, and is refused as by vLLM.
    """
    written = keys.get("method") or ("another method" if keys.get("model") else SUFFIX.name)
    own = [name for name in keys if name.startswith(f"{SUFFIX.name}_") and written != SUFFIX.name]
    own = [name for name in own if _of_its_type(name, keys[name])]
    left = {name: value for name, value in keys.items() if name not in own}
    return left, tuple(Note("unused", name, f"{written} does not read it (it is for {SUFFIX.name}).") for name in own)


def _of_its_type(name: str, value: Any) -> bool:
    try:
        TypeAdapter[Any](SpeculativeConfig.model_fields[name].annotation or Any).validate_python(value)
    except ValidationError:
        return False
    return True


def _clean_names(given: Mapping[str, Any], as_of: str | None) -> tuple[dict[str, Any], tuple[Note, ...]]:
    """Turn dashes into underscores, as vLLM does; an unknown name is refused with a hint."""
    if not isinstance(given, Mapping):
        raise ConfigError(f"speculative_config must be a dictionary such as {EXAMPLE}, got {type(given).__name__}.")
    keys: dict[str, Any] = {}
    notes = []
    for written, value in given.items():
        name = str(written).replace("-", "_")
        if name in keys:
            raise ConfigError(f"speculative_config.{name} is given twice, with a dash and an underscore; keep one.")
        if name not in KEYS and name not in FILLED_IN:
            if as_of is not None and forgives(as_of):
                notes.append(Note("vllm", name, f"vLLM {as_of} does not know it and silently drops it."))
                continue
            label = name if name.isidentifier() and len(name) < 80 else shown(written)
            raise ConfigError(f"speculative_config.{label} is unknown; {_hint(name, as_of)}")
        keys[name] = value
    return keys, tuple(notes)


def _hint(name: str, as_of: str | None) -> str:
    """A hint at what an unknown name means; for a vLLM release, without Augury's own keys."""
    known = [key for key, known in KEYS.items() if as_of is None or _has(as_of, known)]
    if name in ELSEWHERE:
        return f"it is {ELSEWHERE[name]}, not part of speculation; move it there."
    close = COMMON_SLIPS.get(name.lower()) or next(iter(get_close_matches(name, known, n=1, cutoff=0.6)), None)
    return f"did you mean {close!r}?" if close else "remove it (`augury config keys` lists what there is)."


def _has(as_of: str, known: ConfigKey) -> bool:
    return known.since != OWN and valid_in(release(as_of), known.since, known.until)
