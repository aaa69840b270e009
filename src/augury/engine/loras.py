"""The LoRA adapters that an engine has loaded: by name, each in a place of the target's stacked weights."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakSet

from augury.config.errors import ConfigError
from augury.model.lora import Adapters

if TYPE_CHECKING:
    from augury.engine.request import Request

_numbers = itertools.count(1)


class LoadedLora:
    """One adapter in its place. Requests that use it keep the place taken until they have ended."""

    def __init__(self, name: str, path: str, place: int) -> None:
        self.name, self.path, self.place = name, path, place
        self.key = f"{name}#{next(_numbers)}"  # in the prefix cache: a new adapter of the same name has another key
        self.users: WeakSet[Request] = WeakSet()
        self.used = 0  # when it was last asked for, in such events: the least recently used is evicted first

    @property
    def busy(self) -> bool:
        """Whether a request that uses it is unfinished."""
        return any(request.finish_reason is None for request in self.users)


class Loras:
    """Adapters by name; loading and unloading happen between two steps."""

    def __init__(self, adapters: Adapters) -> None:
        self._adapters = adapters
        self._loaded: dict[str, LoadedLora] = {}
        self._leaving: list[LoadedLora] = []  # unloaded, and still used by a request
        self._clock = itertools.count(1)

    @property
    def names(self) -> list[str]:
        """The adapters that requests may ask for."""
        return list(self._loaded)

    def find(self, name: str) -> LoadedLora:
        """The adapter of this name."""
        found = self._loaded.get(name)
        if found is None:
            raise ConfigError(f"lora {name!r} is not loaded; loaded: {', '.join(self._loaded) or 'none'}.")
        found.used = next(self._clock)
        return found

    def load(self, name: str, path: str, evict: bool = False) -> LoadedLora:
        """Read an adapter into a free place; `evict` lets it take that of the least recently used idle one."""
        if name in self._loaded and self._loaded[name].path == path:
            return self.find(name)
        factors = self._adapters.read(Path(path).expanduser())  # before anything is given up for it
        if name in self._loaded:
            self.unload(name)
        place = self._free_place(evict)
        self._adapters.put(place, factors)
        self._loaded[name] = LoadedLora(name, path, place)
        return self.find(name)

    def unload(self, name: str) -> None:
        """Remove an adapter's name; requests that use it finish with it, and then its place is free."""
        if name not in self._loaded:
            raise ConfigError(f"lora {name!r} is not loaded; loaded: {', '.join(self._loaded) or 'none'}.")
        self._leaving.append(self._loaded.pop(name))

    def _free_place(self, evict: bool) -> int:
        self._leaving = [lora for lora in self._leaving if lora.busy]
        idle = sorted((lora for lora in self._loaded.values() if not lora.busy), key=lambda lora: lora.used)
        taken = {lora.place for lora in (*self._loaded.values(), *self._leaving)}
        free = [place for place in range(1, self._adapters.places + 1) if place not in taken]
        if not free and evict and idle:
            free = [self._loaded.pop(idle[0].name).place]
        if not free:
            raise ConfigError(f"all {self._adapters.places} places for adapters are taken; raise max_cpu_loras.")
        return free[0]
