"""What a configuration says about mixtures of experts, and how they are read: Qwen3-MoE and Mixtral.

Checkpoints come in two layouts: three matrices per expert, as these families were published, and all experts of a layer
stacked in two tensors, as transformers 5 keeps them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from augury.model.errors import ModelError
from augury.model.layers import Mixture

if TYPE_CHECKING:
    from augury.model.dense_plan import TensorReader

MIXTURES = ("qwen3_moe", "mixtral")


@dataclass(frozen=True, slots=True)
class ExpertNames:
    """Where a family's published checkpoints keep a layer's experts."""

    block: str
    gate: str
    up: str
    down: str


PUBLISHED = {
    "qwen3_moe": ExpertNames("mlp", "gate_proj", "up_proj", "down_proj"),
    "mixtral": ExpertNames("block_sparse_moe", "w1", "w3", "w2"),
}
STACKED = "mlp"  # the block's name where experts are stacked


def has_mixtures(config: Any) -> bool:
    """Whether some of a model's layers are mixtures that dense.py runs."""
    plan = MixturePlan.of(config)
    return plan is not None and any(map(plan.sparse, range(config.num_hidden_layers)))


class MixturePlan:
    """Names, shapes and numbers of a model's mixtures."""

    def __init__(self, config: Any) -> None:
        qwen = config.model_type == "qwen3_moe"
        self.hidden: int = config.hidden_size
        self.inner: int = config.moe_intermediate_size if qwen else config.intermediate_size
        self.experts: int = config.num_experts if qwen else config.num_local_experts
        self.count: int = config.num_experts_per_tok
        self.normalise: bool = bool(config.norm_topk_prob) if qwen else True
        self._plain: set[int] = set(config.mlp_only_layers or ()) if qwen else set()
        self._every: int = config.decoder_sparse_step if qwen else 1
        self._names = PUBLISHED[config.model_type]
        self.stacked = True  # the layout of dummy weights; `look` finds that of a file
        if self.experts and not 0 < self.count <= self.experts:
            raise ModelError(f"num_experts_per_tok={self.count} of {self.experts} experts cannot be chosen.")
        if self._every < 1:
            raise ModelError(f"decoder_sparse_step={self._every} is not a number of layers.")

    @classmethod
    def of(cls, config: Any) -> MixturePlan | None:
        """The plan of a family that has mixtures."""
        return cls(config) if config.model_type in MIXTURES else None

    def sparse(self, i: int) -> bool:
        """Whether layer i is a mixture."""
        return self.experts > 0 and i not in self._plain and (i + 1) % self._every == 0

    def look(self, holds: Callable[[str], bool], layers: int) -> None:
        """Find out which layout a checkpoint has."""
        self.stacked = any(holds(f"{self._at(i, STACKED)}.experts.down_proj") for i in range(layers))

    def shapes(self, i: int) -> dict[str, tuple[int, ...]]:
        """The tensors of a layer's mixture."""
        router: dict[str, tuple[int, ...]] = {f"{self._at(i)}.gate.weight": (self.experts, self.hidden)}
        if self.stacked:
            return router | {
                f"{self._at(i)}.experts.gate_up_proj": (self.experts, 2 * self.inner, self.hidden),
                f"{self._at(i)}.experts.down_proj": (self.experts, self.hidden, self.inner),
            }
        wide, names = (self.inner, self.hidden), self._names
        of_one = {names.gate: wide, names.up: wide, names.down: wide[::-1]}
        every = range(self.experts)
        return router | {self._of(i, e, name): shape for e in every for name, shape in of_one.items()}

    def read(self, i: int, read: TensorReader) -> Mixture:
        """Read a layer's mixture."""
        at, names = self._at(i), self._names
        router = read.plain([f"{at}.gate"])
        if self.stacked:
            gate_up, down = read.matrix(f"{at}.experts.gate_up_proj"), read.matrix(f"{at}.experts.down_proj")
        else:
            every = range(self.experts)
            both = [[self._of(i, e, names.gate), self._of(i, e, names.up)] for e in every]
            gate_up = read.pile(both, 2 * self.inner, self.hidden)
            down = read.pile([[self._of(i, e, names.down)] for e in every], self.hidden, self.inner)
        return Mixture(read.ops, router, gate_up, down, self.count, self.normalise)

    def _at(self, i: int, block: str = "") -> str:
        return f"model.layers.{i}.{block or (STACKED if self.stacked else self._names.block)}"

    def _of(self, i: int, expert: int, name: str) -> str:
        return f"{self._at(i)}.experts.{expert}.{name}.weight"
