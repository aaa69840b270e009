"""The output of `augury models`: text, or one JSON object."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from augury.config.files import cache_dir
from augury.model import store
from augury.tools.models import actions
from augury.tools.shared.terminal import output_console, print_json, size_text

# config.json's names, and ours for people
FACTS = {
    "model_type": "type",
    "num_hidden_layers": "layers",
    "hidden_size": "width",
    "num_attention_heads": "heads",
    "num_key_value_heads": "kv heads",
    "vocab_size": "vocabulary",
    "max_position_embeddings": "context",
    "dtype": "dtype",
}


def list_models(as_json: bool) -> None:
    """Print everything in the cache."""
    found = store.entries()
    if as_json:
        return print_json({"cache": str(cache_dir()), "models": [_record(entry) for entry in found]})
    console = output_console()
    if not found:
        console.print(f"No models in {cache_dir()}; `augury models pull default` fetches one.", soft_wrap=True)
        return None
    width = max(len(entry.name) for entry in found)
    for entry in found:
        state = "" if entry.ready else "  (stale: rebuilt on next use)"
        console.print(f"{entry.name:<{width}}  {entry.kind:<10}  {size_text(entry.size):>8}{state}", soft_wrap=True)
    console.print(f"in {cache_dir()}", style="dim", soft_wrap=True)
    return None


def pull(name: str, as_json: bool) -> None:
    """Fetch a model and print where it is."""
    path, ready = actions.pull(name, quiet=as_json)
    if as_json:
        return print_json({"name": name, "path": str(path), "ready": ready})
    note = "ready" if ready else "downloaded; it is converted on first use"
    output_console().print(f"{name}: {note}, {path}", soft_wrap=True)
    return None


def show(name: str, as_json: bool) -> None:
    """Print what is known about one model without loading it."""
    found = actions.entries_of(name)
    facts = _facts(found[-1].path)
    if as_json:
        return print_json({"name": name, "entries": [_record(entry) for entry in found], "config": facts})
    console = output_console()
    for entry in found:
        console.print(f"{entry.name}", style="bold", soft_wrap=True)
        state = entry.kind if entry.ready else f"{entry.kind}, stale: rebuilt on next use"
        console.print(f"  {state}, {size_text(entry.size)}, from {entry.source}\n  {entry.path}", soft_wrap=True)
    if facts:
        console.print("  " + ", ".join(f"{FACTS[key]} {value}" for key, value in facts.items()), soft_wrap=True)
    return None


def remove(name: str, as_json: bool) -> None:
    """Delete a model from the cache and print the space freed."""
    freed = store.remove(name)
    if as_json:
        return print_json({"name": name, "freed_bytes": freed})
    output_console().print(f"{name}: removed, {size_text(freed)} freed", soft_wrap=True)
    return None


def verify(name: str, as_json: bool) -> None:
    """Check a model's files and print how many were checked."""
    checked = actions.verify(name)
    if as_json:
        return print_json({"name": name, "verified": [str(path) for path in checked]})
    output_console().print(f"{name}: intact ({len(checked)} checked)", soft_wrap=True)
    return None


def _facts(path: Path) -> dict[str, Any]:
    file = path / "config.json"
    if not file.is_file():
        return {}
    config = json.loads(file.read_text(encoding="utf-8"))
    return {key: config[key] for key in FACTS if key in config}


def _record(entry: store.CachedModel) -> dict[str, Any]:
    return {
        "name": entry.name,
        "kind": entry.kind,
        "path": str(entry.path),
        "size": entry.size,
        "source": entry.source,
        "ready": entry.ready,
    }
