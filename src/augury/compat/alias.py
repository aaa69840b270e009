"""The name `vllm` for this package, in a process that installs it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

OURS = "augury.compat"


class _Alias(MetaPathFinder, Loader):
    """Finds `vllm` and what is below it: the same modules as those below augury.compat, under a second name."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "vllm" and not fullname.startswith("vllm."):
            return None
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        name = OURS + spec.name.removeprefix("vllm")
        try:
            return import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name:
                raise
            why = f"{spec.name} is not among the modules of vLLM that Augury offers; docs/compat.md lists them"
            raise ModuleNotFoundError(why, name=spec.name) from None

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: the module has been run under its own name."""


def install() -> None:
    """Let `import vllm` mean `augury.compat` from now on, also where vLLM is installed."""
    if any(name == "vllm" or name.startswith("vllm.") for name in sys.modules):
        raise RuntimeError("vllm has been imported already; install the alias before that.")
    sys.meta_path.insert(0, _Alias())
