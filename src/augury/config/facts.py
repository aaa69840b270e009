"""Finding a checkpoint on this machine and reading its config.json, without loading a weight or importing a library."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from augury.config.files import CONFIG_BYTES, read_regular
from augury.methods.errors import ConfigError
from augury.methods.facts import ModelFacts, TargetInfo, architectures

__all__ = ["ModelFacts", "TargetInfo", "architectures", "find", "is_local", "names_alone", "read_facts"]

_closed: ContextVar[bool] = ContextVar("closed", default=False)


@contextmanager
def names_alone() -> Iterator[None]:
    """Within this context no file of this machine is read and a model is only a name: names may come from anybody."""
    token = _closed.set(True)
    try:
        yield
    finally:
        _closed.reset(token)


def read_facts(model: str, revision: str | None = None) -> ModelFacts | None:
    """Read the facts of a directory, or of a hub id in the local hub cache; None when neither is there."""
    directory = find(model, revision)
    if directory is None:
        return None
    file = directory / "config.json"
    try:
        raw = json.loads(read_regular(file, CONFIG_BYTES).decode("utf-8-sig"))
    except FileNotFoundError:
        return None
    except ConfigError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{file} cannot be read ({error}); repair it or name another checkpoint.") from None
    if not isinstance(raw, dict):
        raise ConfigError(f"{file} is not a JSON object; a model's config.json is needed.")
    return ModelFacts(model, raw, directory)


def find(model: str, revision: str | None = None) -> Path | None:
    """The directory of a checkpoint on this machine, or None; `revision` applies to hub ids only."""
    if _closed.get():
        return None
    path = Path(model).expanduser() if is_local(model) else None
    return path if path is not None and path.is_dir() else _in_hub_cache(model, revision)


def is_local(model: str) -> bool:
    """Whether a name is an existing path on this machine."""
    try:
        return not _closed.get() and Path(model).expanduser().exists()
    except (OSError, ValueError, RuntimeError):  # not a valid path
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
