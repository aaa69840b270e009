"""How a checkpoint's weights are quantised: `quantization_config` of config.json, as various tools write it.

Only the settings of weights count. Activations keep their own type here, so their scales are not read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from augury.model.errors import ModelError

ALIASES = {"awq_marlin": "awq", "gptq_marlin": "gptq", "auto_awq": "awq", "auto_gptq": "gptq"}  # vLLM's kernels for it


@dataclass(frozen=True, slots=True)
class Scheme:
    """How a checkpoint's quantised matrices are stored; which matrices are quantised is told by their tensors."""

    method: str  # quant_method
    layout: str  # lines, blocks: 8-bit floats; awq, gptq, packed: 4-bit integers
    block: tuple[int, int] = (0, 0)  # lines and columns that share a scale
    group: int = 0  # columns that share a scale; -1: all of a line
    scale: str = "weight_scale"  # name of the tensor with the scales of 8-bit floats
    zero_shift: int = 0  # what must be added to a stored zero point


def read_scheme(written: Any, asked: str | None = None) -> Scheme | None:
    """The scheme of a quantization_config, or None if there is none; `asked` is the user's quantization."""
    if not written:
        return None
    if not isinstance(written, Mapping):
        raise ModelError(f"quantization_config={str(written)[:80]!r} is not a dictionary.")
    method = str(written.get("quant_method"))
    if method not in READERS:
        known = ", ".join(READERS)
        raise ModelError(f"its weights are quantised by {method!r}, which is not supported; these are: {known}.")
    if asked is not None and ALIASES.get(asked, asked) != method:
        raise ModelError(f"quantization={asked!r}, but the weights are quantised by {method!r}; leave it out.")
    return READERS[method](written)


def _refuse(method: str, what: str) -> ModelError:
    return ModelError(f"its weights are quantised by {method!r} with {what}, which is not supported.")


def _integer(written: Mapping[str, Any], name: str, default: int) -> int:
    value = written.get(name, default)
    return value if type(value) is int else 0


def _fp8(written: Mapping[str, Any]) -> Scheme:
    """DeepSeek's block scales, or a scale for each matrix (vLLM's own and AutoFP8's)."""
    if written.get("fmt", "e4m3") not in ("e4m3", "float8_e4m3fn"):
        raise _refuse("fp8", f"fmt={written['fmt']!r}")
    block = written.get("weight_block_size")
    if block is None:
        return Scheme("fp8", "lines")
    return Scheme("fp8", "blocks", _block("fp8", block), scale="weight_scale_inv")


def _block(method: str, block: Any) -> tuple[int, int]:
    if not isinstance(block, list | tuple) or len(block) != 2 or not all(type(n) is int and n > 0 for n in block):
        raise _refuse(method, f"blocks of {block!r}")
    if block[1] & (block[1] - 1) or not 32 <= block[1] <= 256:
        raise _refuse(method, f"blocks of {block[1]} columns")
    return block[0], block[1]


def _group(method: str, group: int) -> int:
    if group != -1 and (group < 32 or group & (group - 1)):
        raise _refuse(method, f"group_size={group}")
    return group


def _awq(written: Mapping[str, Any]) -> Scheme:
    bits, version = written.get("bits", written.get("w_bit")), str(written.get("version", "gemm")).lower()
    if bits != 4 or version != "gemm":
        raise _refuse("awq", f"bits={bits!r} and version={version!r}")
    size = _integer(written, "group_size", 0) or _integer(written, "q_group_size", 128)
    return Scheme("awq", "awq", group=_group("awq", size))


def _gptq(written: Mapping[str, Any]) -> Scheme:
    if written.get("bits") != 4:
        raise _refuse("gptq", f"bits={written.get('bits')!r}")
    if written.get("desc_act") and written.get("group_size", 128) != -1:
        raise _refuse("gptq", "desc_act=True: its groups are not neighbours")
    shift = 0 if written.get("checkpoint_format") == "gptq_v2" else 1
    return Scheme("gptq", "gptq", group=_group("gptq", _integer(written, "group_size", 128)), zero_shift=shift)


def _compressed(written: Mapping[str, Any]) -> Scheme:
    """llm-compressor's: 8-bit floats by line, matrix or block, and 4-bit integers in groups."""
    method, groups = "compressed-tensors", written.get("config_groups")
    sparse = written.get("sparsity_config")
    if isinstance(sparse, Mapping) and sparse.get("format", "dense") != "dense":
        raise _refuse(method, f"sparsity {sparse.get('format')!r}")
    weights = [group.get("weights") for group in groups.values()] if isinstance(groups, Mapping) else []
    if not weights or any(not isinstance(one, Mapping) or one != weights[0] for one in weights):
        raise _refuse(method, "several kinds of weights, or none")
    one: Mapping[str, Any] = weights[0]
    kind, bits, strategy = one.get("type"), one.get("num_bits"), one.get("strategy")
    if kind == "float" and bits == 8 and strategy in ("channel", "tensor"):
        return Scheme(method, "lines")
    if kind == "float" and bits == 8 and strategy == "block":
        return Scheme(method, "blocks", _block(method, one.get("block_structure")))
    packs = kind == "int" and bits == 4 and one.get("symmetric") and written.get("format") == "pack-quantized"
    if packs and strategy in ("group", "channel") and one.get("actorder") in (None, False, "weight", "static"):
        size = -1 if strategy == "channel" else _integer(one, "group_size", 0)
        return Scheme(method, "packed", group=_group(method, size))
    raise _refuse(method, f"weights of type={kind!r}, num_bits={bits!r}, strategy={strategy!r}")


READERS: dict[str, Callable[[Mapping[str, Any]], Scheme]] = {
    "fp8": _fp8,
    "compressed-tensors": _compressed,
    "awq": _awq,
    "gptq": _gptq,
}
