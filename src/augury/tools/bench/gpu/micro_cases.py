"""Cases for a layer's kernels: inputs of a decode pass, and the bytes it must move at least.

A face may overwrite some inputs. They are passed again all the same: other values take no other time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from augury.kernels.rows import Rows
from augury.model.rope import rotary_tables
from augury.tools.bench.gpu.shapes import Config

BLOCK = 16
EPS = 1e-5


@dataclass(frozen=True, slots=True)
class KernelCase:
    """One call: how to make its inputs, how a face runs it, how many bytes it must read and write."""

    name: str
    bytes: int
    make: Callable[[int], Any]  # from a seed
    run: Callable[[Any, Any], Tensor]  # from Faces and inputs


Maker = Callable[[Config, int, int, int, torch.device], Iterator[KernelCase]]


def kind_of(device: torch.device) -> torch.dtype:
    """The dtype of activations on a device."""
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def _normal(seed: int, device: torch.device, *shape: int) -> Tensor:
    random = torch.Generator(device).manual_seed(seed)
    return torch.randn(shape, generator=random, device=device, dtype=kind_of(device))


def counted(rows: int) -> str:
    """A number of rows in words, such as "3 rows"."""
    return f"{rows} row{'s' * (rows != 1)}"


def norm(config: Config, batch: int, tokens: int, context: int, device: torch.device) -> Iterator[KernelCase]:
    """Cases for a layer's norm, without and with the residual added."""
    rows, size = batch * (1 + tokens), config["hidden_size"]
    one = rows * size * kind_of(device).itemsize
    weight = _normal(1, device, size)

    def make(seed: int) -> tuple[Tensor, Tensor]:
        return _normal(seed, device, rows, size), _normal(seed + 1000, device, rows, size)

    yield KernelCase(
        f"rms_norm {rows}x{size}", 2 * one, make, lambda faces, given: faces.ops.rms_norm(given[0], weight, EPS)
    )
    yield KernelCase(
        f"add_rms_norm {rows}x{size}",
        4 * one,
        make,
        lambda faces, given: faces.ops.add_rms_norm(*given, weight, EPS)[0],
    )


def matrices(config: Config) -> dict[str, tuple[int, int]]:
    """The matrices of a model that a step multiplies with, (out, in) each."""
    hidden, inner, dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    q, kv = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    return {
        "qkv": (q + 2 * kv, hidden),
        "o": (hidden, q),
        "gate_up": (2 * inner, hidden),
        "down": (hidden, inner),
        "head": (config["vocab_size"], hidden),
    }


def linear(config: Config, batch: int, tokens: int, context: int, device: torch.device) -> Iterator[KernelCase]:
    """Cases for the matrices of a layer, and for the output head."""
    rows = batch * (1 + tokens)
    for name, (out, width) in matrices(config).items():
        x = _normal(0, device, rows, width)
        yield KernelCase(
            f"{name} {out}x{width}, {counted(rows)}",
            out * width * kind_of(device).itemsize,
            lambda seed, out=out, width=width: _normal(seed, device, out, width) * width**-0.5,  # type: ignore[misc]
            lambda faces, weight, x=x: faces.ops.linear(x, weight),  # type: ignore[misc]
        )


def fp8_linear(config: Config, batch: int, tokens: int, context: int, device: torch.device) -> Iterator[KernelCase]:
    """Cases for the matrices of a layer in 8 bits; the reference unpacks them first."""
    from augury.kernels.quantized import quantised

    rows = batch * (1 + tokens)
    for name, (out, width) in matrices(config).items():
        if name != "head":
            x = _normal(0, device, rows, width)
            yield KernelCase(
                f"{name} {out}x{width}, {counted(rows)}",
                out * width + 4 * out,
                lambda seed, out=out, width=width: quantised(_normal(seed, device, out, width) * width**-0.5),  # type: ignore[misc]
                lambda faces, weight, x=x: faces.ops.packed_linear(x, weight),  # type: ignore[misc]
            )


def attend(config: Config, batch: int, tokens: int, context: int, device: torch.device) -> Iterator[KernelCase]:
    """The case for attention of one layer: every request has one known row and a chain of drafts after it."""
    heads, kv, dim = config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]
    rows, item = chain_rows(batch, tokens, context, device), kind_of(device).itemsize
    count, places = len(rows.tokens), (len(rows.block_tables.flatten()) + 1) * BLOCK
    least = (2 * batch * (context + tokens) * kv * dim + 2 * count * heads * dim) * item

    def make(seed: int) -> tuple[Tensor, ...]:
        return (
            _normal(seed, device, count, heads, dim),
            _normal(seed + 1, device, places, kv, dim),
            _normal(seed + 2, device, places, kv, dim),
        )

    def run(faces: Any, given: tuple[Tensor, ...]) -> Tensor:
        out: Tensor = faces.ops.attend(*given, seen(faces), dim**-0.5)
        return out

    seen = _seen_once(rows)
    yield KernelCase(f"{batch} x {counted(1 + tokens)} at context {context}", least, make, run)


def rope(config: Config, batch: int, tokens: int, context: int, device: torch.device) -> Iterator[KernelCase]:
    """The case for the rotation of queries and keys, with the write to the KV cache."""
    from augury.model.heads.files import llama_config

    heads, kv, dim = config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]
    rows = chain_rows(batch, tokens, context, device)
    count, places = len(rows.tokens), (len(rows.block_tables.flatten()) + 1) * BLOCK
    tables = tuple(table.to(device) for table in rotary_tables(llama_config(config), context + tokens + 1))
    norms = [_normal(i, device, dim) if config["model_type"] == "qwen3" else None for i in (1, 2)]
    least = 2 * count * (heads + 2 * kv) * dim * kind_of(device).itemsize
    seen = _seen_once(rows)

    def make(seed: int) -> tuple[Tensor, Tensor, Tensor]:
        cache = torch.zeros(2, places, kv, dim, dtype=kind_of(device), device=device)
        return _normal(seed, device, count, (heads + 2 * kv) * dim), cache[0], cache[1]

    def run(faces: Any, given: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        qkv, keys, values = given
        out: Tensor = faces.ops.rotate_and_store(qkv, seen(faces), tables, keys, values, *norms, EPS)
        return out

    yield KernelCase(counted(count), least, make, run)


def chain_rows(batch: int, tokens: int, context: int, device: torch.device) -> Rows:
    """The rows of a decode pass in which every request has `context` known tokens and a chain of `tokens` drafts."""
    blocks = -(-(context + tokens) // BLOCK)
    random = torch.Generator().manual_seed(0)
    tables = (1 + torch.randperm(batch * blocks, generator=random)).view(batch, blocks).to(device)
    slots = torch.arange(batch, device=device).repeat_interleave(1 + tokens)
    node = torch.arange(1 + tokens, device=device).repeat(batch) - 1  # -1: the known row
    logical = context + node
    drafted = node >= 0
    return Rows(
        tokens=torch.zeros_like(slots),
        positions=logical,
        slots=slots,
        context=torch.full_like(slots, context),
        base=torch.full_like(slots, context),
        ancestors=torch.where(drafted, (2 << node.clamp(min=0)) - 1, 0),
        write=tables[slots, logical // BLOCK] * BLOCK + logical % BLOCK,
        wanted=torch.arange(len(slots), device=device),
        block_tables=tables,
        block_size=BLOCK,
        span=min(blocks * BLOCK, 1 << (context + tokens - 1).bit_length()),
        groups=batch,
    )


def _seen_once(rows: Rows) -> Callable[[Any], Any]:
    """A function giving a face's view of the rows, made once per face, as a pass makes it once for all layers."""
    views: dict[int, Any] = {}

    def view(faces: Any) -> Any:
        key = id(faces.ops)
        if key not in views:
            views[key] = faces.ops.view(rows)
        return views[key]

    return view


CASES: dict[str, Maker] = {"attend": attend, "linear": linear, "fp8 linear": fp8_linear, "norm": norm, "rope": rope}
