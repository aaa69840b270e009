"""Compile the draw's Triton kernels for a GPU that is not there: `python compile_kernels.py 90` prints what they use.

The entry points run as they do on a GPU, on tensors that no kernel touches; a launch compiles instead.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.pop("TRITON_INTERPRET", None)

import torch
import triton
from draw_oracle import roots, sampling
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from augury.kernels import draw_triton, edits_triton, peak_triton, top_triton
from augury.verify.sampling import Masks

OPTIONS = ("num_warps", "maxnreg", "enable_fp_fusion", "enable_reflect_ftz")
TYPES = {torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.int64: "*i64", torch.int32: "*i32", torch.bool: "*i1"}
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
    return "constexpr" if thing is None else TYPES[thing.dtype] if isinstance(thing, Tensor) else "i32"


class Compiled:
    """Stands for a kernel: what is launched is compiled."""

    def __init__(self, kernel: Any, architecture: int, found: list[dict[str, Any]]) -> None:
        self.kernel, self.architecture, self.found = kernel, architecture, found

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return self.compile

    def compile(self, *args: Any, **named: Any) -> None:
        names = self.kernel.arg_names
        options = {name: named.pop(name) for name in OPTIONS if name in named}
        signature = {name: type_of(arg) for name, arg in zip(names, args, strict=False)}
        signature |= dict.fromkeys(named, "constexpr")
        constants = {(names.index(name),): value for name, value in named.items()}
        divisible = {}
        for path, leaf in leaves(args, ()):
            if leaf is None:
                constants[path] = None
            elif isinstance(leaf, Tensor) or leaf % 16 == 0:
                divisible[path] = [["tt.divisibility", 16]]
        source = ASTSource(self.kernel, signature, constants, divisible)
        made = triton.compile(source, target=GPUTarget("cuda", self.architecture, 32), options=options)
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(made.asm["cubin"])
            file.flush()
            used = subprocess.run([TOOL, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
        numbers = {key.lower(): int(value) for key, value in re.findall(r"(REG|STACK|SHARED):(\d+)", used)}
        self.found.append({"kernel": self.kernel.__name__, **numbers})


def main() -> None:
    found: list[dict[str, Any]] = []
    for module in (draw_triton, edits_triton, peak_triton, top_triton):
        for name, thing in vars(module).copy().items():
            if isinstance(thing, triton.JITFunction) and name in KERNELS:
                setattr(module, name, Compiled(thing, int(sys.argv[1]), found))
    lines, vocab = 32, 128_256
    logits = torch.empty(lines, vocab, dtype=torch.bfloat16)
    plain, params = roots(lines, plain=True), sampling()
    edited = replace(plain, plain=False, masks=Masks(torch.zeros(4, vocab // 32, dtype=torch.int32), plain.slots))
    full = sampling()
    full.counts, full.bias = torch.zeros(1, vocab, dtype=torch.int32), torch.zeros(1, vocab)
    full.in_prompt = torch.zeros(1, vocab, dtype=torch.bool)
    draw_triton.draw(logits, plain, params)
    draw_triton.draw(logits, edited, full)
    peak_triton.argmax(logits, torch.zeros(vocab, dtype=torch.int64))
    top_triton.top_children(logits, 4)
    print(json.dumps(found))


KERNELS = {
    "find_peaks", "join_peaks", "narrow", "run_race", "settle", "list_edits", "top_of_chunk", "top_of_line",
}  # fmt: skip

if __name__ == "__main__":
    main()
