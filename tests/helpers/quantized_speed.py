"""Products with 8-bit weights on a GPU, in microseconds: `python quantized_speed.py [sweep]`.

Every matrix of the 8B shape, at several numbers of rows: cuBLAS in bf16, our product, and unpacking followed by cuBLAS.
`sweep` tries other tiles and segments for few rows. Each call has its own weights, so that no cache holds them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from augury.kernels import fused, quantized_triton
from augury.kernels.quantized import Quantized, quantised
from augury.kernels.quantized_triton import QuantizedTile
from augury.tools.bench.gpu.micro import _seconds
from augury.tools.bench.gpu.micro_cases import matrices
from augury.tools.bench.gpu.shapes import SHAPES

DEVICE = torch.device("cuda")
TOUCHED = 256 << 20  # bytes between two uses of one matrix
ROWS = (1, 4, 16, 32, 64, 128, 256, 512, 1024, 2048)
VARIANTS = [
    (segments, tile)
    for segments in (1, 2, 4, 8)
    for tile in (
        QuantizedTile(16, 64, 4, 4),
        QuantizedTile(16, 64, 4, 6),
        QuantizedTile(16, 64, 4, 8),
        QuantizedTile(16, 128, 8, 4),
        QuantizedTile(16, 128, 4, 4),
    )
]


def microseconds(call: Callable[[Any], Tensor], weights: list[Any]) -> float:
    """Of one call, the best of some rounds over all weights."""
    return 1e6 * _seconds([lambda weight=weight: call(weight) for weight in weights], DEVICE)


def made(outs: int, depth: int) -> tuple[list[Tensor], list[Quantized]]:
    """Enough copies of a matrix, in both kinds."""
    count = max(2, -(-TOUCHED // (outs * depth)))
    plain = [torch.randn(outs, depth, device=DEVICE, dtype=torch.bfloat16) * depth**-0.5 for _ in range(count)]
    return plain, [quantised(one) for one in plain]


def table() -> None:
    """cuBLAS, ours, and unpacking for cuBLAS."""
    for name, (outs, depth) in matrices(SHAPES["llama-8b"]).items():
        plain, codes = made(outs, depth)
        for rows in ROWS if name != "head" else (1, 64):
            x = torch.randn(rows, depth, device=DEVICE, dtype=torch.bfloat16)
            vendor = microseconds(lambda weight: fused.linear(x, weight), plain)  # noqa: B023
            ours = microseconds(lambda weight: quantized_triton.linear(x, weight), codes)  # noqa: B023
            unpacks = microseconds(
                lambda weight: fused.linear(x, quantized_triton.unpack(weight, x.dtype)),  # noqa: B023
                codes,
            )
            reference = fused.linear(x.float(), codes[0].unpacked())
            error = (quantized_triton.linear(x, codes[0]).float() - reference).abs().max() / reference.abs().max()
            speed = outs * depth / ours / 1e6
            print(
                f"{name} {outs}x{depth} rows {rows}: cuBLAS bf16 {vendor:.1f}, ours {ours:.1f} ({speed:.2f} TB/s), "
                f"unpack + cuBLAS {unpacks:.1f}; largest error {float(error):.1e}",
                flush=True,
            )


def sweep() -> None:
    """Other tiles for few rows, fastest first."""
    for name, (outs, depth) in matrices(SHAPES["llama-8b"]).items():
        _, codes = made(outs, depth)
        x, found = torch.randn(1, depth, device=DEVICE, dtype=torch.bfloat16), []
        for segments, tile in VARIANTS:
            if outs // 64 * segments > 4096 or (outs > 8192 and segments > 2):
                continue
            with (
                patch.object(quantized_triton, "segments_of", lambda *_, segments=segments: segments),
                patch.object(quantized_triton, "TILES", ((1 << 30, tile),)),
            ):
                found.append((microseconds(lambda weight: quantized_triton.linear(x, weight), codes), segments, tile))  # noqa: B023
        for took, segments, tile in sorted(found)[:6]:
            print(f"{name} 1 row: {took:.1f} us ({outs * depth / took / 1e6:.2f} TB/s) {segments} segments, {tile}")
        sys.stdout.flush()


if __name__ == "__main__":
    with torch.no_grad():
        sweep() if "sweep" in sys.argv else table()
