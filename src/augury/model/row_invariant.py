"""Makes a row's bits independent of the other rows, also where a model of transformers calls torch itself.

Layers of class `nn.Linear` are given our product. Experts and routers keep their matrices as plain parameters and call
`F.linear` on some of the rows, and a gate for each row is a column of numbers, whose last few torch computes by scalar
code: while a mixture of experts runs, these calls are replaced by ours.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from augury.kernels import Ops

FEWEST = 4  # the fewest outputs of a matrix that our product takes
LANES = 16  # a row of so many numbers, or a multiple, is computed by vector code alone


def linear_of(ops: Ops) -> Callable[..., Tensor]:
    """An F.linear whose result for a row depends on that row alone."""

    def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        outputs = len(weight)
        if outputs < FEWEST:
            weight = F.pad(weight, (0, 0, 0, FEWEST - outputs))
            bias = None if bias is None else F.pad(bias, (0, FEWEST - outputs))
        wide = ops.linear(x.reshape(-1, x.shape[-1]).float(), weight.detach(), None if bias is None else bias.float())
        return wide[:, :outputs].reshape(*x.shape[:-1], outputs).to(x.dtype)

    return linear


def use_row_invariant_matrices(model: Any, ops: Ops) -> None:
    """Let a model's matrices run on our kernels: faster for a few rows, and each row independent of the others."""
    for module in model.modules():
        if type(module) is nn.Linear and module.weight.is_contiguous():
            module.forward = _matrix(module, linear_of(ops))  # type: ignore[method-assign]
    mixtures = [module for module in model.modules() if any(map(_has_experts, module.children()))]
    if mixtures and model._can_set_experts_implementation():
        model.set_experts_implementation("eager")  # the others run all experts in one call of their own
    for module in mixtures:
        module.forward = _taken_over(module.forward, ops)


def _has_experts(module: nn.Module) -> bool:
    """Whether it keeps matrices of several experts in one parameter."""
    return not isinstance(module, nn.Conv1d) and any(p.ndim == 3 for p in module.parameters(recurse=False))


def _taken_over(forward: Any, ops: Ops) -> Any:
    ours: dict[Any, Callable[..., Tensor]] = {F.linear: linear_of(ops)}
    for sigmoid in (F.sigmoid, torch.sigmoid, Tensor.sigmoid):
        ours[sigmoid] = _sigmoid

    def run(*args: Any, **kwargs: Any) -> Any:
        with _Calls(ours):
            return forward(*args, **kwargs)

    return run


class _Calls(TorchFunctionMode):
    """Replaces some functions of torch while it is active."""

    def __init__(self, ours: dict[Callable[..., Any], Callable[..., Tensor]]) -> None:
        super().__init__()
        self._ours = ours

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return self._ours.get(func, func)(*args, **(kwargs or {}))


def _sigmoid(x: Tensor) -> Tensor:
    # Rounded from float64, vector code and scalar code agree.
    return torch.sigmoid(x) if x.shape[-1] % LANES == 0 else torch.sigmoid(x.double()).to(x.dtype)


def _matrix(module: nn.Linear, linear: Callable[..., Tensor]) -> Any:
    weight, bias = module.weight.detach(), None if module.bias is None else module.bias.detach().float()
    return lambda x: linear(x, weight, bias)
