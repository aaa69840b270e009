"""The GPU face of exact mode: a row's bits depend on nothing but its own tokens and parameters.

Not on how many rows share the pass, nor on whether the row is a prompt's, a draft's or one computed again. Attention
walks keys in one way for all of them, and matrix products have one order of adding (matrix_triton.py). Where a faster
product is found to add in that order for a number of rows, it is used: larger tiles of our own, or cuBLAS.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from augury.kernels import fused, matrix_triton, quantized_triton, stream_triton
from augury.kernels.attend_triton import View
from augury.kernels.quantized import Quantized
from augury.kernels.triton_ops import TritonOps

if TYPE_CHECKING:
    from augury.kernels import AnyPacked
    from augury.kernels.rows import Rows

TRIALS = 4
Shape = tuple[int, int, int, torch.dtype]  # rows, out, depth
Product = Callable[[Tensor, Tensor], Tensor | None]


class ExactTritonOps(TritonOps):
    """See Ops."""

    def __init__(self) -> None:
        self._products: dict[Shape, Product] = {}

    def view(self, rows: Rows) -> View:
        """Prompts are read like decoding rows, whatever requests share the pass."""
        return View(replace(rows, chunked=False), steady=True)

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Multiply by the fastest product that was found to add in our order."""
        shape = (len(x), *weight.shape, weight.dtype)
        if shape not in self._products and x.is_cuda and not torch.cuda.is_current_stream_capturing():
            self._products[shape] = _fastest(shape, x.device)
        out = self._products.get(shape, matrix_triton.linear)(x, weight)
        assert out is not None
        return out if bias is None else out + bias

    def packed_linear(self, x: Tensor, weight: AnyPacked, bias: Tensor | None = None) -> Tensor:
        """Multiply by one kernel, with one instruction, for any number of rows."""
        if isinstance(weight, Quantized):
            return quantized_triton.linear(x, weight, bias, steady=True)
        return self.linear(x, weight.unpacked(), bias)


def _streamed(x: Tensor, weight: Tensor) -> Tensor | None:
    return stream_triton.linear(x, weight, segments=matrix_triton.segments_of(weight))


def _fastest(shape: Shape, device: torch.device) -> Product:
    """The first of the faster products that gives our bits for these numbers of rows, outs and depth, else our own."""
    faster: tuple[Product, ...] = (_streamed, fused.linear)
    return next((product for product in faster if _agrees(product, shape, device)), matrix_triton.linear)


def _agrees(product: Product, shape: Shape, device: torch.device) -> bool:
    """Whether a product gives our bits.

    The second half of every sum nearly cancels the first, so that little but rounding is left: another order shows in
    nearly every number, not in one of ten thousand.
    """
    rows, outs, depth, dtype = shape
    for seed in range(TRIALS):
        random = torch.Generator(device).manual_seed(seed)
        x = torch.randn(rows, depth, device=device, generator=random)
        weight = torch.randn(min(outs, 8192), depth, device=device, generator=random)
        half = depth // 2
        x[:, half : 2 * half] = -x[:, :half] * (1 + 0.01 * torch.rand(half, device=device, generator=random))
        weight[:, half : 2 * half] = weight[:, :half]
        given, matrix = x.to(dtype), weight.to(dtype).repeat(-(-outs // len(weight)), 1)[:outs]
        out = product(given, matrix)
        if out is None or not torch.equal(out, matrix_triton.linear(given, matrix)):
            return False
    return True
