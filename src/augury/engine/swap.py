"""Swapping drafters: another one's weights replace the loaded one's, between two steps.

The weights are copied into the existing tensors, so nothing else changes: slots, caches and captured CUDA graphs stay,
and so do the requests. What the old drafter has put into its cache is still read, which makes drafts a little worse for
a while and never changes a text. Only a drafter of the same kind and sizes fits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from augury.config.engine import EngineConfig
from augury.config.errors import ConfigError
from augury.config.facts import read_facts
from augury.config.installed import check_target
from augury.config.speculative import SpeculativeConfig
from augury.engine.build import build_drafter
from augury.engine.engine import Engine
from augury.methods.recognise import recognise
from augury.model.target import KVCache

PLAIN = (bool, int, float, str)  # values of these types must be the same in both


class DrafterSwap:
    """Swaps drafters in, and takes back the last swap."""

    def __init__(self, engine: Engine, config: EngineConfig, target: Path) -> None:
        self._engine, self._config, self._target = engine, config, target
        self._before: tuple[str, list[Tensor]] | None = None

    def put(self, directory: Path) -> None:
        """Load a drafter's weights in place of the present ones; a ConfigError or ModelError leaves all as it is."""
        if self._config.tensor_parallel_size > 1:
            raise ConfigError(
                f"drafters are not swapped with tensor_parallel_size={self._config.tensor_parallel_size} yet; restart "
                "the server with the new one."
            )
        spec = self._config.speculative_config
        network = self._engine.drafter.network if self._engine.drafter is not None else None
        if spec is None or network is None or spec.card.weights != "draft":
            raise ConfigError("this server has no drafter with weights of its own; there is nothing to swap.")
        facts = read_facts(str(directory))
        if facts is None:
            raise ConfigError(f"{directory} holds no drafter: it has no config.json that can be read.")
        check_kind(directory.name, facts.raw, spec.card.name)
        check_target(facts, read_facts(str(self._target)))
        changed = self._config.model_copy(update={"speculative_config": self._with(str(directory))})
        fresh = build_drafter(changed, self._engine.target, self._target)
        assert fresh is not None
        pairs = matched(network, fresh.network, self._engine.target)
        self._before = str(spec.model), [mine.clone() for mine, _ in pairs]
        self._write(str(directory), pairs)

    def undo(self) -> None:
        """Restore the weights from before the last `put`."""
        if self._before is None:
            raise ConfigError("no drafter has been swapped in; there is nothing to roll back.")
        model, weights = self._before
        assert self._engine.drafter is not None
        mine = tensors_in(self._engine.drafter.network, self._engine.target)
        self._write(model, list(zip(mine, weights, strict=True)))
        self._before = None

    @torch.no_grad()
    def _write(self, model: str, pairs: list[tuple[Tensor, Tensor]]) -> None:
        for mine, theirs in pairs:
            mine.copy_(theirs)
        self._config.speculative_config = self._with(model)

    def _with(self, model: str) -> SpeculativeConfig:
        """The speculative configuration with another drafter."""
        assert self._config.speculative_config is not None
        return self._config.speculative_config.model_copy(update={"model": model})

    @property
    def loaded(self) -> str:
        """The drafter that drafts now."""
        spec = self._config.speculative_config
        return str(spec.model) if spec else ""


def check_kind(name: str, raw: Mapping[str, Any], method: str) -> None:
    """Refuse a drafter whose files say that it is for another method, before it is loaded as one for this."""
    found = recognise(raw)
    if found is not None and found.method != method:
        raise ConfigError(
            f"{name} is a drafter for {found.method} ({found.why}), and this server drafts with {method}; only a "
            "drafter of the same kind can replace it. Restart the server with it."
        )


def matched(mine: object, theirs: object, target: object) -> list[tuple[Tensor, Tensor]]:
    """The tensors of two networks of one kind, pair by pair; refuses networks that differ in anything else."""
    ours, others = list(parts_of(mine, target)), list(parts_of(theirs, target))
    if [name for name, _ in ours] != [name for name, _ in others]:
        odd = sorted({name for name, _ in ours} ^ {name for name, _ in others})
        raise ConfigError(
            f"the drafter's structure differs from the loaded one's ({', '.join(odd[:3])}); restart with it."
        )
    pairs: list[tuple[Tensor, Tensor]] = []
    for (name, a), (_, b) in zip(ours, others, strict=True):
        if not isinstance(a, Tensor):
            if a != b and name.startswith("features."):
                raise ConfigError(
                    f"the drafter reads layer {b} of the target where the loaded one reads layer {a}; restart with it."
                )
            if a != b:
                raise ConfigError(f"the drafter's {name} is {b!r}, the loaded one's {a!r}; restart the server with it.")
        elif a.shape != b.shape or a.dtype != b.dtype:
            raise ConfigError(
                f"the drafter's {name} is {list(b.shape)} in {b.dtype}, the loaded one's {list(a.shape)} in {a.dtype}; "
                "restart the server with it."
            )
        else:
            pairs.append((a, b))
    return pairs


def tensors_in(network: object, target: object) -> list[Tensor]:
    """The tensors of a network, in the order of `matched`."""
    return [part for _, part in parts_of(network, target) if isinstance(part, Tensor)]


def parts_of(root: object, target: object) -> Iterator[tuple[str, Any]]:
    """Tensors and plain values of an object by their path, each object once; neither caches nor the target's."""
    seen = {id(target), *(id(tensor) for tensor in _target_tensors(target))}
    yield from _walk(root, "", seen)


def _target_tensors(target: object) -> Iterator[Tensor]:
    """The tensors that a drafter may share with its target."""
    return (part for _, part in _walk(target, "", set()) if isinstance(part, Tensor))


def _walk(value: Any, path: str, seen: set[int]) -> Iterator[tuple[str, Any]]:
    if isinstance(value, PLAIN) or value is None:
        yield path, value
        return
    if id(value) in seen or isinstance(value, KVCache):
        return
    seen.add(id(value))
    if isinstance(value, Tensor | np.ndarray):
        yield path, torch.as_tensor(value)  # an array's own memory
        return
    for name, part in _members(value):
        yield from _walk(part, f"{path}.{name}" if path else name, seen)


def _members(value: Any) -> list[tuple[str, Any]]:
    """The named parts of an object that our networks are made of."""
    if isinstance(value, list | tuple):
        return [(str(i), part) for i, part in enumerate(value)]
    if isinstance(value, nn.Module):
        return [*value.named_parameters(), *value.named_buffers()]
    if is_dataclass(value) and not isinstance(value, type):
        return [(field.name, getattr(value, field.name)) for field in fields(value)]
    if type(value).__module__.startswith("augury.model"):
        return sorted(vars(value).items())
    return []  # kernels, configurations, functions
