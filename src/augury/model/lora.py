"""LoRA adapters on a target: a stack of low-rank factors for each projection, and which row of a pass uses which."""

from __future__ import annotations

from pathlib import Path

from augury.kernels.low_rank import LowRankStack
from augury.model.dense import Dense
from augury.model.layers import AdaptedLinear, AdapterContext, AnyLinear, GatedMLP
from augury.model.lora_files import Factors, read_adapter

# The fused projections of a layer, and the checkpoint's names of their parts.
PARTS = {
    "qkv": ("q_proj", "k_proj", "v_proj"),
    "out": ("o_proj",),
    "gate_up": ("gate_proj", "up_proj"),
    "down": ("down_proj",),
}


class Adapters:
    """All adapters of one target; places are numbered from 1."""

    def __init__(self, target: Dense, places: int, max_rank: int) -> None:
        self.places, self.max_rank, self._layers = places, max_rank, target.num_layers
        self.current = target.current = AdapterContext()
        self.shapes = target.projections
        self._stacks: list[dict[str, LowRankStack]] = []
        for layer in target.layers:
            assert isinstance(layer.mlp, GatedMLP)  # adapters of experts are refused earlier
            made = {name: self._stack(target, parts) for name, parts in PARTS.items()}
            layer.attention.qkv = self._adapted(target, layer.attention.qkv, made["qkv"])
            layer.attention.out = self._adapted(target, layer.attention.out, made["out"])
            layer.mlp.gate_up = self._adapted(target, layer.mlp.gate_up, made["gate_up"])
            layer.mlp.down = self._adapted(target, layer.mlp.down, made["down"])
            self._stacks.append(made)
        target.prepare_layers()

    def _stack(self, target: Dense, parts: tuple[str, ...]) -> LowRankStack:
        sizes, width = [self.shapes[part][0] for part in parts], self.shapes[parts[0]][1]
        return LowRankStack.zeros(self.places, width, sizes, self.max_rank, target.cache_dtype, target.device)

    def _adapted(self, target: Dense, base: AnyLinear, stack: LowRankStack) -> AnyLinear:
        return AdaptedLinear(base, target.ops, stack, self.current)

    def read(self, directory: Path) -> Factors:
        """An adapter's factors from its files, or a ModelError."""
        return read_adapter(directory, self.shapes, self._layers, self.max_rank)

    def put(self, place: int, factors: Factors) -> None:
        """Write an adapter to a place; the tensors stay where they are, so that captured graphs see it."""
        self.clear(place)
        for (layer, part), (down, up) in factors.items():
            name = next(name for name, parts in PARTS.items() if part in parts)
            stack, number, rank = self._stacks[layer][name], PARTS[name].index(part), len(down)
            begin = 0 if number == 0 else int(stack.bounds[number - 1])
            first = number * stack.rank
            stack.down[place - 1, :, first : first + rank] = down.T
            stack.up[place - 1, :rank, begin : int(stack.bounds[number])] = up.T

    def clear(self, place: int) -> None:
        """Empty a place."""
        for stacks in self._stacks:
            for stack in stacks.values():
                stack.down[place - 1].zero_()
                stack.up[place - 1].zero_()
