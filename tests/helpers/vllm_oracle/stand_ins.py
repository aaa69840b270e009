"""Stand-ins for what a vLLM wheel needs and this environment lacks, so that its config modules can be imported.

Only what every installation has is stood in for: packages the wheel requires, and its own compiled parts. An optional
package stays missing, because vLLM asks whether it is there.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import re
import sys
import types
from collections.abc import Sequence
from email.parser import Parser
from pathlib import Path
from typing import Any

# Where a distribution's module has another name than the distribution.
MODULES = {
    "pyzmq": ("zmq",),
    "py-cpuinfo": ("cpuinfo",),
    "pillow": ("PIL",),
    "opencv-python-headless": ("cv2",),
    "pyyaml": ("yaml",),
    "python-json-logger": ("pythonjsonlogger",),
    "lm-format-enforcer": ("lmformatenforcer",),
    "opentelemetry-sdk": ("opentelemetry",),
    "apache-tvm-ffi": ("tvm_ffi",),
    "flashinfer-python": ("flashinfer",),
    "nvidia-cutlass-dsl": ("cutlass",),
    "quack-kernels": ("quack",),
    "oss-harmony": ("openai_harmony",),
    "fastapi": ("fastapi", "uvloop"),
    "nvidia-cudnn-frontend": ("cudnn",),
    "pynvvideocodec": ("PyNvVideoCodec",),
}
COMPILED = re.compile(r"vllm\.(_\w*C\w*|cumem_allocator|spinloop|_rs\w*|.*_C)$")


class StandIn(types.ModuleType):
    """A module whose every name is a class that takes anything and does nothing."""

    __path__ = ()  # a package, so that what is below it is looked for
    __version__ = "999.0"

    def __getattr__(self, name: str) -> Any:
        """A fresh class by that name, the same one each time."""
        if name.startswith("__"):
            raise AttributeError(name)
        made = type(name, (Anything,), {"__module__": self.__name__})
        setattr(self, name, made)
        return made


class _Names(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything()

    def __getitem__(cls, item: Any) -> Any:
        return cls

    def __or__(cls, other: Any) -> Any:  # type: ignore[override]
        return Any

    __ror__ = __or__


class Anything(metaclass=_Names):
    """Takes any argument, has every attribute, and gives itself back when called as a decorator."""

    def __init__(self, *args: Any, **named: Any) -> None:
        pass

    def __init_subclass__(cls, **named: Any) -> None:
        super().__init_subclass__()

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        return {"type": "any"}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything()

    def __call__(self, *args: Any, **named: Any) -> Any:
        return args[0] if len(args) == 1 and not named and callable(args[0]) else Anything()


class Finder:
    """The last resort of the import system: asked only when nobody else has the module."""

    def __init__(self, packages: frozenset[str]) -> None:
        self.packages, self.used = packages, set[str]()

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> Any:
        """A spec for what is stood in for."""
        if (name.partition(".")[0] in self.packages or COMPILED.match(name)) and _asked_by_vllm():
            self.used.add(name)
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> StandIn:
        """An empty module."""
        return StandIn(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing is run."""


def _asked_by_vllm() -> bool:
    """Whether the import stands in vLLM's code: other libraries look for optional packages, and must not find these."""
    frame: types.FrameType | None = sys._getframe(2)
    while frame is not None and "importlib" in frame.f_code.co_filename:
        frame = frame.f_back
    return frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] == "vllm"


def required(root: Path) -> frozenset[str]:
    """The modules an installation of the wheel always has, by its metadata, less those that are here."""
    metadata = Parser().parsestr(next(root.glob("vllm-*.dist-info/METADATA")).read_text())
    found = set()
    for line in metadata.get_all("Requires-Dist") or ():
        requirement, _, marker = line.partition(";")
        if "extra ==" in marker:
            continue
        name = re.split(r"[\s\[<>=!~(]", requirement.strip())[0].lower()
        found.update(MODULES.get(name, (name.replace("-", "_"),)))
    return frozenset(name for name in found if importlib.util.find_spec(name) is None)


def install(root: Path) -> Finder:
    """Put the wheel's modules on the path, and stand-ins behind everything else."""
    sys.path.insert(0, str(root))
    finder = Finder(required(root))
    sys.meta_path.append(finder)  # type: ignore[arg-type]
    return finder
