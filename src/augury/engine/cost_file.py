"""Measured costs of passes, kept from one start to the next: by machine, model, and how it is run.

If the file cannot be read or written, passes are measured as on the first start. The figures need not be exact, since
steps correct them.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path

import torch

from augury import __version__
from augury.config.engine import EngineConfig
from augury.config.files import cache_dir, read_bounded, write_text
from augury.config.fingerprint import fingerprint
from augury.kernels.machine import processor

Points = dict[int, float]
LARGEST = 1 << 16  # bytes of a file


def cost_file(config: EngineConfig, directory: Path, device: torch.device) -> Path | None:
    """The file of this model's costs on this machine; None if the model's files cannot be read to identify it."""
    try:
        model = fingerprint(directory)
    except OSError:
        return None
    on_gpu = device.type == "cuda"
    machine = torch.cuda.get_device_name(device) if on_gpu else f"{processor()} {os.cpu_count()}"
    told = (
        __version__,
        machine,
        torch.get_num_threads(),
        model,
        str(config.dtype),
        config.cpu_arithmetic,
        config.exact,
        config.enforce_eager,
        config.tensor_parallel_size,
        config.load_format,
        config.quantization,
        config.kv_cache_dtype,
    )
    digest = hashlib.sha256(repr(told).encode()).hexdigest()
    return cache_dir() / "costs" / f"{digest[:24]}.json"


def remembered(path: Path | None, sizes: list[int], measure: Callable[[], Points]) -> Points:
    """Seconds of a pass by its rows: from the file if it has exactly these sizes, else measured and saved."""
    if path is None:
        return measure()
    found = _read(path)
    if found is None or sorted(found) != sizes:
        found = measure()
        _keep(path, found)
    return found


def _read(path: Path) -> Points | None:
    try:
        found = {int(size): float(seconds) for size, seconds in json.loads(read_bounded(path, LARGEST)).items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return None
    return found if all(0 < seconds < 3600 for seconds in found.values()) else None


def _keep(path: Path, points: Points) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(points))
    except OSError:
        return  # the directory cannot be written to: measured again next time
