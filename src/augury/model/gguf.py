"""A GGUF file turned, once, into a directory that transformers loads as it is.

Everything comes from the file itself: config.json and generation_config.json from its metadata, the tokenizer from its
vocabulary, and model.safetensors in float32 from its tensors, dequantised a few rows at a time. Matrices whose codes
our kernels can read are also kept as they are, in packed.safetensors.
"""

from __future__ import annotations

import hashlib
import json
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from augury.model.errors import ModelError
from augury.model.gguf_families import FAMILIES, TOP, GGUFFamily

if TYPE_CHECKING:
    import numpy as np

    from augury.model.gguf_file import GGUFFile, Tensor

CONVERTER_VERSION = 4  # raise it when the output changes: cached models are then converted again
FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "model.safetensors",
    "packed.safetensors",
)
CHUNK_ELEMENTS = 1 << 18  # 1 MB of float32 stays in the CPU's cache: 16 MB takes 1.7 times as long


def convert(source: Path, target: Path, quiet: bool = False) -> str:
    """Fill the directory `target` from a GGUF file and return the sha256 of the weights written."""
    from augury.model.gguf_blocks import UNPACK
    from augury.model.gguf_config import build_config, build_generation_config
    from augury.model.gguf_file import open_gguf
    from augury.model.gguf_tokenizer import write_tokenizer

    file = open_gguf(source)
    family = family_of(file)
    config = build_config(file, family)
    _write_json(target / "config.json", config)
    _write_json(target / "generation_config.json", build_generation_config(file))
    write_tokenizer(file, target, config["max_position_embeddings"])
    plan = plan_weights(file, family, config)
    packed = [w for w in plan if len(w.tensor.shape) == 2 and w.tensor.kind.name in UNPACK]
    kinds = {w.name: w.tensor.kind.name for w in packed}
    total = sum(4 * _elements(w.tensor.shape) for w in plan) + sum(w.tensor.raw.nbytes for w in packed)
    with progress(f"Converting {source.name}", total, quiet) as advance:
        stored = [Stored(w.name, "U8", w.tensor.raw.shape, _stored_rows(w)) for w in packed]
        write_tensors(target / "packed.safetensors", stored, {"kinds": json.dumps(kinds)}, advance)
        floats = [Stored(w.name, "F32", w.tensor.shape, dequantised(w, file)) for w in plan]
        return write_tensors(target / "model.safetensors", floats, {"format": "pt"}, advance)


def family_of(file: GGUFFile) -> GGUFFamily:
    """The family of a file's architecture; an error names the ones there are."""
    name = file.need("general.architecture")
    if name not in FAMILIES:
        raise ModelError(f"{file.path}: architecture {name!r} is not supported; supported: {', '.join(FAMILIES)}.")
    if file.metadata.get("split.count", 1) > 1:
        raise ModelError(
            f"{file.path}: one part of a split file; join the parts with `llama-gguf-split --merge` first."
        )
    if file.metadata.get(f"{name}.expert_count", 0):
        raise ModelError(f"{file.path}: a mixture of experts; only dense models are converted.")
    return FAMILIES[name]


@dataclass(frozen=True, slots=True)
class Weight:
    """One tensor to convert: its new name, the heads whose rows are interleaved (0: none), what to add to it."""

    name: str
    tensor: Tensor
    heads: int = 0
    offset: float = 0.0


def plan_weights(file: GGUFFile, family: GGUFFamily, config: dict[str, Any]) -> list[Weight]:
    """Match every stored tensor with its place in the transformers model; none may be left over on either side."""
    layers = range(config["num_hidden_layers"])
    wanted = [f"blk.{i}.{part}.weight" for i in layers for part in family.layer]
    if config["attention_bias"] or family.always_biased:
        wanted += [f"blk.{i}.{part}" for i in layers for part in family.biases]
    for name in ("token_embd.weight", "output_norm.weight", *wanted):
        if name not in file.tensors:
            raise ModelError(f"{file.path}: tensor {name!r} is missing; download the file again.")
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    plan = []
    for name, tensor in file.tensors.items():
        if name == "rope_freqs.weight":  # read into the config
            continue
        part = name.rsplit(".", 2)[-2]
        permuted = heads.get(part, 0) if family.permuted else 0
        if permuted and tensor.shape[0] != permuted * config["head_dim"]:
            raise ModelError(
                f"{file.path}: tensor {name!r} has {tensor.shape[0]} rows for {permuted} heads; it is broken."
            )
        offset = -family.norm_offset if part.endswith("norm") else 0.0
        plan.append(Weight(_new_name(file, family, name), tensor, permuted, offset))
    return plan


def _new_name(file: GGUFFile, family: GGUFFamily, name: str) -> str:
    """The transformers name of a stored tensor."""
    stem, _, ending = name.rpartition(".")
    if stem in TOP:
        return f"{TOP[stem]}.{ending}"
    pieces = stem.split(".")
    fits = ending == "weight" or f"{pieces[-1]}.{ending}" in family.biases
    if fits and len(pieces) == 3 and pieces[0] == "blk" and pieces[2] in family.layer:
        return f"model.layers.{pieces[1]}.{family.layer[pieces[2]]}.{ending}"
    # Leaving a tensor out would change the model silently.
    raise ModelError(f"{file.path}: no place is known for tensor {name!r} in {family.class_name}.")


@dataclass(frozen=True, slots=True)
class Stored:
    """One tensor of a safetensors file: name, type, shape, and its data piece by piece."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    chunks: Iterator[np.ndarray]


def write_tensors(path: Path, tensors: list[Stored], metadata: dict[str, str], advance: Callable[[int], None]) -> str:
    """Write a safetensors file chunk by chunk and return its sha256.

    `safetensors.numpy.save_file` wants every tensor in memory at once; the format is a JSON header and the bare data.
    """
    header: dict[str, Any] = {"__metadata__": metadata}
    end = 0
    for tensor in tensors:
        start, end = end, end + _elements(tensor.shape) * {"F32": 4, "U8": 1}[tensor.dtype]
        header[tensor.name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    digest = hashlib.sha256()
    with path.open("wb") as handle:

        def put(data: Any) -> None:
            handle.write(data)
            digest.update(data)

        put(struct.pack("<Q", len(text)) + text)
        for tensor in tensors:
            for chunk in tensor.chunks:
                put(chunk.data)
                advance(chunk.nbytes)
    return digest.hexdigest()


def _stored_rows(weight: Weight) -> Iterator[np.ndarray]:
    """The packed rows of one matrix, in the order transformers wants them."""
    import numpy as np

    rows = weight.tensor.raw
    yield np.ascontiguousarray(rows[row_order(len(rows), weight.heads)] if weight.heads else rows)


def dequantised(weight: Weight, file: GGUFFile) -> Iterator[np.ndarray]:
    """The values of one tensor in float32, in the order transformers wants them, some rows at a time."""
    import numpy as np
    from gguf.quants import dequantize

    tensor = weight.tensor
    rows, order = tensor.raw, None
    if weight.heads:
        order = row_order(tensor.shape[0], weight.heads)
    step = max(1, CHUNK_ELEMENTS // max(1, tensor.shape[-1]))
    for start in range(0, len(rows), step):
        part = slice(start, start + step)
        # A matrix is quantised row by row, so its rows can change places while still packed.
        packed = rows[part] if order is None or len(tensor.shape) == 1 else rows[order[part]]
        try:
            values = dequantize(packed, tensor.kind).reshape(-1)
        except NotImplementedError as error:
            raise ModelError(f"{file.path}: tensor {tensor.name!r} cannot be read: {error}.") from error
        if order is not None and len(tensor.shape) == 1:
            values = values[order]
        yield np.ascontiguousarray(values + weight.offset if weight.offset else values, dtype="<f4")


def row_order(rows: int, heads: int) -> np.ndarray:
    """Where each row of a Q or K matrix lies in the file: llama.cpp interleaves the two halves of every head."""
    import numpy as np

    half = rows // heads // 2
    return np.arange(rows).reshape(heads, half, 2).swapaxes(1, 2).reshape(-1)


def _elements(shape: tuple[int, ...]) -> int:
    count = 1
    for extent in shape:
        count *= extent
    return count


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


@contextmanager
def progress(label: str, total: int | None, quiet: bool) -> Iterator[Callable[[int], None]]:
    """A bar (a spinner without a total) on standard error if it is a terminal; yields the function that advances it."""
    if quiet or not sys.stderr.isatty():
        yield lambda amount: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn

    columns = [SpinnerColumn(), TextColumn("{task.description}")]
    if total is not None:
        columns += [BarColumn(bar_width=16), TaskProgressColumn()]
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=total)
        yield lambda amount: bar.advance(task, amount)
