"""Quantised matrices of a checkpoint, read by name into one form."""

from __future__ import annotations

import re
from collections.abc import Callable

import torch
from torch import Tensor

from augury.kernels.quantized import FP8, NIBBLE, Quantized, halves, stacked
from augury.model.checkpoint import Checkpoint
from augury.model.errors import ModelError
from augury.model.schemes import Scheme

AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)  # the position in an int32 word of each of eight adjacent codes
PER_WORD = 8  # 4-bit codes in an int32
FINEST_STEP = 128  # the longest group that kernels take; scales of longer ones are repeated
SPARE = re.compile(r"\.(input_scale|input_global_scale|g_idx|weight_g_idx|weight_shape|[kv]_scale)$")
WORDS = {"awq": "qweight", "gptq": "qweight", "packed": "weight_packed"}  # the tensor of 4-bit codes, by layout
Shapes = dict[str, tuple[int, ...]]


class QuantizedFile:
    """The quantised matrices among a checkpoint's tensors."""

    def __init__(self, checkpoint: Checkpoint, scheme: Scheme, device: torch.device) -> None:
        self._checkpoint, self._scheme, self._device = checkpoint, scheme, device
        self._shapes: Shapes = {}

    def require(self, expected: Shapes, spare: Callable[[str], bool]) -> None:
        """Like Checkpoint.require; `expected` is what an unquantised checkpoint would hold."""
        wanted: Shapes = {}
        for name, shape in expected.items():
            module = name.removesuffix(".weight")
            quantised = len(shape) == 2 and module != name and self._holds(module)
            wanted |= self._tensors(module, *shape) if quantised else {name: shape}
            if quantised:
                self._shapes[module] = shape
        self._checkpoint.require(wanted, lambda name: spare(name) or SPARE.search(name) is not None)

    def matrix(self, modules: list[str]) -> Quantized | Tensor | None:
        """One matrix, or several stacked; in float32 if they do not fit together; None unless some are quantised."""
        if not any(module in self._shapes for module in modules):
            return None
        parts = [self._one(module) for module in modules]
        whole = [part for part in parts if isinstance(part, Quantized)]
        joined = stacked(whole) if len(whole) == len(parts) else None
        if joined is not None:
            return joined
        return torch.cat([part if isinstance(part, Tensor) else part.unpacked() for part in parts])

    def _holds(self, module: str) -> bool:
        if self._scheme.layout in WORDS:
            return f"{module}.{WORDS[self._scheme.layout]}" in self._checkpoint
        name = f"{module}.weight"
        return name in self._checkpoint and self._checkpoint.kind(name) == "F8_E4M3"

    def _tensors(self, module: str, outs: int, width: int) -> Shapes:
        """Names and shapes of the tensors that the file holds for a matrix [outs, width]."""
        scheme, groups = self._scheme, _groups(width, self._scheme.group)
        if scheme.layout in WORDS and (width % PER_WORD or outs % PER_WORD or width % (width // groups or 1)):
            raise ModelError(f"{module} [{outs}, {width}] cannot be {scheme.method}'s: groups do not divide it.")
        shapes: dict[str, Shapes] = {
            "lines": {"weight": (outs, width), "weight_scale": self._scale_shape(module, outs)},
            "blocks": {"weight": (outs, width), scheme.scale: _blocks(outs, width, scheme.block)},
            "awq": {
                "qweight": (width, outs // PER_WORD),
                "qzeros": (groups, outs // PER_WORD),
                "scales": (groups, outs),
            },
            "gptq": {
                "qweight": (width // PER_WORD, outs),
                "qzeros": (groups, outs // PER_WORD),
                "scales": (groups, outs),
            },
            "packed": {"weight_packed": (outs, width // PER_WORD), "weight_scale": (outs, groups)},
        }
        return {f"{module}.{name}": shape for name, shape in shapes[scheme.layout].items()}

    def _scale_shape(self, module: str, outs: int) -> tuple[int, ...]:
        """The shape of a matrix's scales in the file: one for each line (row), or a single one."""
        name = f"{module}.weight_scale"
        found = self._checkpoint.shape(name) if name in self._checkpoint else ()
        return found if found in ((), (1,), (outs,), (1, 1)) else (outs, 1)

    def _one(self, module: str) -> Quantized | Tensor:
        if module not in self._shapes:
            return self._tensor(f"{module}.weight").float()
        outs, width = self._shapes[module]
        names = self._tensors(module, outs, width)
        tensors = {name.removeprefix(f"{module}."): self._tensor(name) for name in names}
        scheme = self._scheme
        if scheme.layout == "lines":
            return Quantized(tensors["weight"], tensors["weight_scale"].float().view(1, -1).expand(1, outs), width)
        if scheme.layout == "blocks":
            wide = tensors[scheme.scale].float().repeat_interleave(scheme.block[0], 0)[:outs]
            return Quantized(tensors["weight"], wide.t().contiguous(), scheme.block[1])
        return _four_bits(scheme, tensors, width)

    def _tensor(self, name: str) -> Tensor:
        found = self._checkpoint.tensor(name).to(self._device)
        return found.contiguous() if found.dtype != FP8 or found.is_contiguous() else found.clone()


def _groups(width: int, group: int) -> int:
    return 1 if group <= 0 else -(-width // group)


def _blocks(outs: int, width: int, block: tuple[int, int]) -> tuple[int, int]:
    lines, columns = (max(1, size) for size in block)
    return -(-outs // lines), -(-width // columns)


def nibbles(words: Tensor, order: tuple[int, ...] = tuple(range(PER_WORD))) -> Tensor:
    """The eight 4-bit codes of each int32, uint8 [..., words, 8]; `order` gives each code's position in the word."""
    shifts = 4 * torch.tensor(order, device=words.device, dtype=torch.int32)
    return ((words[..., None] >> shifts) & NIBBLE).to(torch.uint8)


def _four_bits(scheme: Scheme, tensors: dict[str, Tensor], width: int) -> Quantized:
    """Unpack AWQ, GPTQ or compressed-tensors int32 words, each of which orders its codes differently."""
    if scheme.layout == "packed":  # codes are stored with 8 added
        codes, scales = nibbles(tensors["weight_packed"]).flatten(1), tensors["weight_scale"].t()
        zeros = torch.full(scales.shape, PER_WORD, dtype=torch.uint8, device=scales.device)
    elif scheme.layout == "awq":
        codes = nibbles(tensors["qweight"], AWQ_ORDER).flatten(1).t()
        scales, zeros = tensors["scales"], nibbles(tensors["qzeros"], AWQ_ORDER).flatten(1)
    else:
        codes = nibbles(tensors["qweight"]).transpose(1, 2).flatten(0, 1).t()
        scales, zeros = tensors["scales"], nibbles(tensors["qzeros"]).flatten(1)
        zeros = (zeros + scheme.zero_shift) & NIBBLE
    group = scheme.group if scheme.group > 0 else width
    finer = group
    while finer > FINEST_STEP or finer & (finer - 1):
        finer //= 2
        if group % finer or finer < 32:
            raise ModelError(f"{scheme.method} with groups of {group} columns is not supported.")
    scales, zeros = (part.repeat_interleave(group // finer, 0) for part in (scales.float(), zeros))
    return Quantized(halves(codes.contiguous(), finer), scales.contiguous(), finer, zeros.contiguous())
