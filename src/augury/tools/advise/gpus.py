"""Accelerators by name, from gpus.yaml."""

from __future__ import annotations

import re
from difflib import get_close_matches
from functools import cache

from pydantic import Field

from augury.config.errors import ConfigError
from augury.tools.advise.tables import Row, rows

MAKERS = re.compile("^(nvidia|amd|intel)?(geforce|tesla|instinct)?")


class Gpu(Row):
    """A device's published figures."""

    name: str
    aliases: tuple[str, ...] = ()
    memory_gb: float = Field(gt=0)
    bandwidth_gbs: float = Field(gt=0)
    bf16_tflops: float = Field(gt=0)
    fp8_tflops: float | None = Field(default=None, gt=0)
    link_gbs: float = Field(gt=0)
    system: str | None = None  # aiconfigurator's name for it, if it has figures of it


@cache
def gpus() -> dict[str, Gpu]:
    """Every device by its name, as it is written in the file."""
    return {gpu.name: gpu for gpu in rows("gpus", Gpu)}


def find_gpu(name: str) -> Gpu:
    """A device by name or alias, or as nvidia-smi calls it, whatever the spaces, dashes and capitals."""
    known = {_plain(word): gpu for gpu in gpus().values() for word in (gpu.name, *gpu.aliases)}
    found = known.get(_plain(name)) or known.get(MAKERS.sub("", _plain(name)))
    if found is None:
        close = [known[word].name for word in get_close_matches(_plain(name), known, n=3, cutoff=0.5)]
        hint = f"did you mean {' or '.join(dict.fromkeys(close))}?" if close else f"known are {', '.join(gpus())}."
        raise ConfigError(f"--gpu {name}: not in the table; {hint}")
    return found


def _plain(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())
