"""Compile Triton kernels for GPUs that are not there: `python compile_kernels.py 80 90 [few] [turns]`.

Prints what they use. The entry points run as on a GPU, on tensors that no kernel touches; a launch compiles instead.
`few` leaves out the variants that take longest; with `turns` each architecture has every kernel, and of its variants
every other one.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

os.environ.pop("TRITON_INTERPRET", None)

import compile_draw
import compile_layers
import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

HOPPER = 90  # the first that launches kernels ahead
EIGHT_BITS = 89  # the first architecture that has floats of 8 bits
OPTIONS = ("num_warps", "num_stages", "maxnreg", "enable_fp_fusion", "enable_reflect_ftz", "launch_pdl")
TYPES = {
    torch.float64: "*fp64",
    torch.float32: "*fp32",
    torch.bfloat16: "*bf16",
    torch.int64: "*i64",
    torch.int32: "*i32",
    torch.bool: "*i1",
    torch.uint8: "*u8",
    torch.float8_e4m3fn: "*fp8e4nv",
}
TOOL = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"


def leaves(thing: Any, path: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], Any]]:
    """Everything that is no tuple, with its place."""
    if isinstance(thing, tuple):
        for i, part in enumerate(thing):
            yield from leaves(part, (*path, i))
    else:
        yield path, thing


def type_of(thing: Any) -> Any:
    if isinstance(thing, tuple):
        return type(thing)(*map(type_of, thing))
    if isinstance(thing, Tensor):
        return TYPES[thing.dtype]
    return "constexpr" if thing is None else "fp32" if isinstance(thing, float) else "i32"


class Compiled:
    """Stands for a kernel: what is launched is compiled, for every architecture."""

    def __init__(self, kernel: Any, architectures: list[int], found: list[dict[str, Any]], turns: bool = False) -> None:
        self.kernel, self.architectures, self.found, self.turns = kernel, architectures, found, turns
        self.variants: list[Any] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return self.compile

    def compile(self, *args: Any, **named: Any) -> None:
        names = self.kernel.arg_names
        options = {name: named.pop(name) for name in OPTIONS if name in named}
        signature = {name: type_of(arg) for name, arg in zip(names, args, strict=False)}
        signature |= dict.fromkeys(named, "constexpr")
        constants = {(names.index(name),): value for name, value in named.items()}
        divisible, unknown = {}, self.kernel.do_not_specialize or []
        for path, leaf in leaves(args, ()):
            if leaf is None:
                constants[path] = None
            elif isinstance(leaf, Tensor) or (names[path[0]] not in unknown and leaf % 16 == 0):
                divisible[path] = [["tt.divisibility", 16]]
        for architecture in self._those_to_compile_for((signature, constants, divisible, options)):
            if "AHEAD" in named:
                options["launch_pdl"] = constants[names.index("AHEAD"),] = architecture >= HOPPER
            self._compile_for(architecture, ASTSource(self.kernel, signature, constants, divisible), options)

    def _those_to_compile_for(self, variant: Any) -> list[int]:
        """All architectures; taking turns, all for the first variant and then one after the other."""
        told = repr(variant)
        if not self.turns or told in self.variants:
            return [] if self.turns else self.architectures
        self.variants.append(told)
        turn = len(self.variants) - 1
        return self.architectures if not turn else [self.architectures[turn % len(self.architectures)]]

    def _compile_for(self, architecture: int, source: ASTSource, options: dict[str, Any]) -> None:
        made = triton.compile(source, target=GPUTarget("cuda", architecture, 32), options=options)
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(made.asm["cubin"])
            file.flush()
            used = subprocess.run([TOOL, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
        numbers = {key.lower(): int(value) for key, value in re.findall(r"(REG|STACK|SHARED):(\d+)", used)}
        self.found.append({"kernel": self.kernel.__name__, "architecture": architecture, **numbers})


def watch(
    modules: Iterable[ModuleType],
    kernels: set[str],
    architectures: list[int],
    found: list[dict[str, Any]],
    turns: bool = False,
) -> None:
    """Compile these kernels from now on where they would be launched; `found` takes what each of them uses."""
    for module in modules:
        for name, thing in vars(module).copy().items():
            if isinstance(thing, triton.JITFunction) and name in kernels:
                setattr(module, name, Compiled(thing, architectures, found, turns))


def main() -> None:
    architectures = [int(word) for word in sys.argv[1:] if word.isdigit()]
    few, turns = "few" in sys.argv[2:], "turns" in sys.argv[2:]
    found: list[dict[str, Any]] = []
    wanted = list(architectures)
    for cases in (compile_draw, compile_layers):
        watch(cases.MODULES, cases.KERNELS, wanted, found, turns)
        cases.launch(few)
    for eight_bits in (False, True):
        wanted[:] = [number for number in architectures if (number >= EIGHT_BITS) == eight_bits]
        if wanted:
            compile_layers.launch_quantised(few, eight_bits)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
