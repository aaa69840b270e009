"""In which form a loaded model's matrices run on a CPU, and which of its layers run in one call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Forms:
    """The forms in which a contender's target was loaded."""

    contender: str
    matrices: dict[str, int]  # how many, by form
    layers: int
    layers_in_one_call: int

    def __str__(self) -> str:
        if not self.matrices:
            return f"{self.layers} layers, through transformers"
        forms = ", ".join(
            f"{count} {'matrix' if count == 1 else 'matrices'} in {form}" for form, count in self.matrices.items()
        )
        return f"{forms}; {self.layers_in_one_call} of {self.layers} layers in one call"


def forms_of(contender: str, target: Any) -> Forms:
    """Count the target's matrices, its head's included; a model run through transformers does not expose them."""
    layers = getattr(target, "layers", [])
    found = Counter(form for layer in layers for form in _forms_of_layer(layer))
    if layers and (form := _form(getattr(target, "_head", None))):
        found[form] += 1
    return Forms(contender, dict(found), target.num_layers, _fused(target))


@contextmanager
def layers_step_by_step(target: Any) -> Iterator[None]:
    """Run the layers step by step inside the block, so that each step can be timed."""
    from augury.kernels.step_by_step import StepByStep

    before = target.run_layers
    target.run_layers = StepByStep(target.layers)
    try:
        yield
    finally:
        target.run_layers = before


def _fused(target: Any) -> int:
    """How many layers are run by compiled code as a whole."""
    from augury.kernels.fused_layer import FusedLayer, FusedLayers

    run = getattr(target, "run_layers", None)
    return sum(isinstance(layer, FusedLayer) for layer in run.layers) if isinstance(run, FusedLayers) else 0


def _forms_of_layer(layer: Any) -> Iterator[str]:
    for linear in (layer.attention.qkv, layer.attention.out):
        yield from filter(None, [_form(linear)])
    for part in (layer.mlp.gate_up, layer.mlp.down):
        experts = getattr(part, "ndim", 0) == 3  # one matrix per expert
        yield from filter(None, [_form_of(part)] * len(part) if experts else [_form(part)])


def _form(linear: Any) -> str | None:
    return _form_of(getattr(getattr(linear, "base", linear), "weight", None))  # a matrix with adapters wraps its base


def _form_of(weight: Any) -> str | None:
    """A matrix in words: the bits of its codes and how it is multiplied, or its dtype."""
    from torch import Tensor

    from augury.kernels.tiles import Tiled
    from augury.kernels.unpack import Packed

    if isinstance(weight, Tiled):
        digits = "3 bytes" if len(weight.digits) == 3 else "1 byte"
        return f"{_bits(weight.tiles.dtype)} bits (activations in {digits})"
    if isinstance(weight, Packed):
        return f"{_bits(weight.codes.dtype)} bits (unpacked in the cache)"
    return str(weight.dtype).removeprefix("torch.") if isinstance(weight, Tensor) else None


def _bits(dtype: Any) -> int:
    """Bits per code: 4-bit codes are stored in pairs, as unsigned bytes."""
    return 4 if str(dtype).endswith("uint8") else 8
