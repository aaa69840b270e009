"""Which files of a directory hold its weights: safetensors, else pickles, of which only tensors are ever read.

An index names the shards of a checkpoint. Whatever it names must be there and lie in the directory; files that it does
not name are read too, since some checkpoints keep a drafter's layer in a file of its own.
"""

from __future__ import annotations

import json
from pathlib import Path, PurePosixPath

from augury.model.errors import ModelError

SAFE, PICKLED = "model.safetensors", "pytorch_model.bin"  # a checkpoint's one file; its index is named after it
PICKLE_ENDINGS = (".bin", ".pt")
MASK_FILE = "mask_embedding.pt"  # of DFlash: a vector next to the weights
# Files of a training run are neither weights nor plain tensors.
OTHERS = (
    MASK_FILE,
    "training_args.bin",
    "optimizer.bin",
    "optimizer.pt",
    "scheduler.bin",
    "scheduler.pt",
    "rng_state.bin",
    "rng_state.pt",
)


def weight_files(directory: Path) -> list[Path]:
    """Every file with weights: safetensors if there are any, else pickles; an empty list means none."""
    for single, endings in ((SAFE, (".safetensors",)), (PICKLED, PICKLE_ENDINGS)):
        found = [path for path in directory.iterdir() if path.suffix in endings and path.name not in OTHERS]
        index = index_of(directory, single)
        if index.is_file() and not (directory / single).is_file():  # an index next to the whole file is a leftover
            found += indexed(index)
        if found:
            return sorted(set(found))
    return []


def has_weights(directory: Path) -> bool:
    """Whether there is any file of weights at all."""
    endings = (".safetensors", *PICKLE_ENDINGS)
    return any(path.suffix in endings and path.name not in OTHERS for path in directory.iterdir())


def index_of(directory: Path, single: str) -> Path:
    """The path of the shard index, which exists if the checkpoint is not one file."""
    return directory / f"{single}.index.json"


def indexed(index: Path) -> list[Path]:
    """The shards that an index names; raises unless all of them are files in its directory."""
    try:
        names = set(json.loads(index.read_text(encoding="utf-8-sig"))["weight_map"].values())
    except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise ModelError(f"{index} is not a shard index: {error}") from None
    wrong = [name for name in names if not isinstance(name, str) or _leaves(name)]
    if wrong:
        raise ModelError(
            f"{index} names {wrong[0]!r}, which is not a file of its directory; fetch the checkpoint again."
        )
    absent = sorted(name for name in names if not (index.parent / name).is_file())
    if absent:
        raise ModelError(f"{index.parent} lacks shards that its index names: {', '.join(absent)}; fetch them too.")
    return [index.parent / name for name in sorted(names)]


def _leaves(name: str) -> bool:
    """Whether a name points outside the directory; links are followed, because the hub's cache consists of them."""
    path = PurePosixPath(name.replace("\\", "/"))
    return not name or "\0" in name or path.is_absolute() or ".." in path.parts
