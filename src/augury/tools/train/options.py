"""What a training was asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from augury.config.errors import ConfigError

PROMPT = 1024  # tokens; longer prompts are left out, since little of their answers would be read
Tell = Callable[[str, int, int], None]  # what is being done, how far it is, of how much


@dataclass(frozen=True, slots=True)
class TrainOptions:
    """What was asked for."""

    method: str
    target: str
    prompts: list[Path]
    held_out: list[Path]
    out: Path
    answer_tokens: int
    held_prompts: int
    vocabulary: int
    depth: int
    layers: int | None  # of a stack of them; None: not given
    device: str
    openings: int = 0  # prompts that the target writes itself, besides those of the files
    collected: Path | None = None  # what a server collected
    init: Path | None = None  # a drafter to continue from
    answers: Path | None = None  # where answers are kept; several runs may share them


def device_of(name: str) -> torch.device:
    """The one that was asked for; by itself a GPU where there is one."""
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("--device cuda: torch sees no GPU; use auto or cpu.")
    return torch.device(name if name != "auto" else "cuda" if torch.cuda.is_available() else "cpu")
