"""Gate heads: small heads of every kind, overfitted to a few prompts on purpose, kept in the cache for the next time.

A gate shows that a method's whole path works: train, export, load as any published checkpoint, and on the prompts it
was trained on its drafts are accepted. Its acceptance says nothing about how good a method is.

    <cache>/gates/<target>/<kind>/    the checkpoint, and gate.json: what it was trained on, and how long
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from augury.config.files import cache_dir
from augury.config.fingerprint import fingerprint
from augury.methods.registry import METHODS, load
from augury.model.scratch import discard, install, scratch
from augury.train.recipe import Recipe
from augury.train.study import Study

MANIFEST = "gate.json"
VERSION = 2  # of the trainers: gates of an older one are trained anew

Trainer = Callable[[Study, Path, Recipe], float]


@dataclass(frozen=True, slots=True)
class Kind:
    """How a gate of one kind is made."""

    train: Trainer
    recipe: Recipe


KINDS: dict[str, Kind] = {
    name: Kind(load(gate.train), Recipe(gate.steps, rate=gate.rate))
    for card in METHODS.values()
    for name, gate in card.gates.items()
}


@dataclass(frozen=True, slots=True)
class GateHead:
    """A gate in the cache."""

    kind: str
    directory: Path
    seconds: float  # of training
    steps: int
    loss: float  # where it ended
    prompts: list[str]  # digests of what it was trained on
    length: int  # new tokens of each answer
    version: int = VERSION

    def serves(self, prompts: list[str], length: int) -> bool:
        """Whether it has seen these prompts, with answers as long."""
        return self.version == VERSION and set(prompts) <= set(self.prompts) and length <= self.length


class Gates:
    """The gates of one target for one set of prompts; missing ones are trained when they are asked for."""

    def __init__(self, target: Path, prompts: list[list[int]], length: int, root: Path | None = None) -> None:
        self._target, self._prompts, self._length = target, prompts, length
        self._root = (root or cache_dir() / "gates") / fingerprint(target)
        self._digests = [digest(prompt) for prompt in prompts]
        self._study: Study | None = None

    @property
    def study(self) -> Study:
        """The target's answers, made once for all kinds."""
        if self._study is None:
            self._study = Study.of(self._target, self._prompts, self._length)
        return self._study

    def find(self, kind: str) -> GateHead | None:
        """The gate in the cache, if it has seen the prompts; else None."""
        directory = self._root / kind
        try:
            told: dict[str, Any] = json.loads((directory / MANIFEST).read_text())
            gate = GateHead(**told | {"directory": directory})
        except (OSError, ValueError, TypeError):
            return None
        return gate if gate.serves(self._digests, self._length) else None

    def train(self, kind: str, steps: int | None = None, tick: Callable[[float], None] | None = None) -> GateHead:
        """Train a gate and replace the one in the cache, if any."""
        made, directory = KINDS[kind], self._root / kind
        recipe = replace(made.recipe, steps=steps or made.recipe.steps, tick=tick or made.recipe.tick)
        study = self.study
        with scratch(directory, quiet=True) as room:
            begun = time.perf_counter()
            loss = made.train(study, room / kind, recipe)
            seconds = time.perf_counter() - begun
            gate = GateHead(kind, directory, round(seconds, 1), recipe.steps, loss, self._digests, self._length)
            told = {name: value for name, value in asdict(gate).items() if name != "directory"}
            (room / kind / MANIFEST).write_text(json.dumps(told, indent=2) + "\n")
            discard(directory)
            install(room / kind, directory, lambda _: False)
        return gate


def digest(tokens: Iterable[int]) -> str:
    """A short hash of a prompt's tokens."""
    return hashlib.sha256(" ".join(map(str, tokens)).encode()).hexdigest()[:16]
