"""torch without its meta kernels, for processes that are ours alone and run on a CPU.

A third of the time in which torch is imported goes into kernels for tensors without data, written in Python, which
compilers and transformers' loading of models need and an engine of ours does not. They are imported as soon as
something needs them: before transformers, torch's compiler or a class of the user's. A script that imports `LLM` is not
ours, and gets torch as it is.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

KERNELS = "torch._meta_registrations"
USERS = ("transformers", "torch._dynamo", "torch._inductor", "torch._decomp")


class _Before(MetaPathFinder):
    """Imports the meta kernels before the first module that uses them."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Import the meta kernels if this module uses them; finds nothing itself."""
        if fullname in USERS:
            import_the_rest()
        return None


_before = _Before()


def import_lean() -> None:
    """Import torch; does nothing where it is imported already, or was built for GPUs."""
    if "torch" in sys.modules or not _for_cpus():
        return
    sys.modules[KERNELS] = ModuleType(KERNELS)
    try:
        torch = import_module("torch")
    finally:
        del sys.modules[KERNELS]
    vars(torch).pop(KERNELS.rpartition(".")[2], None)
    sys.meta_path.insert(0, _before)


def import_the_rest() -> None:
    """Import the meta kernels if import_lean has left them out."""
    if _before in sys.meta_path:
        sys.meta_path.remove(_before)
        import_module(KERNELS)


def _for_cpus() -> bool:
    found = PathFinder.find_spec("torch")
    places = (found.submodule_search_locations if found else None) or ()
    libraries = [file.name for place in places for file in (Path(place) / "lib").glob("*torch_*")]
    return bool(libraries) and not any("cuda" in name or "hip" in name or "xpu" in name for name in libraries)
