"""A drafter's files: tensors by name from safetensors or from pickles that hold nothing else."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from augury.config.files import CONFIG_BYTES, read_regular
from augury.kernels import Ops, choose
from augury.model.checkpoint import DERIVED
from augury.model.configurations import auto_config
from augury.model.errors import ModelError, one_line
from augury.model.layers import Linear
from augury.model.weight_files import weight_files

REAL = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
WHOLE = (torch.int64, torch.int32, torch.bool)  # maps between vocabularies, not weights
SHOWN = 6  # names listed in an error before it says how many more


def read_raw_config(directory: Path) -> dict[str, Any]:
    """The content of config.json, uninterpreted."""
    try:
        raw = json.loads(read_regular(directory / "config.json", CONFIG_BYTES).decode("utf-8-sig"))
    except FileNotFoundError:
        raise ModelError(f"{directory} is not a drafter's directory: it has no config.json.") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{directory / 'config.json'} cannot be read ({error}); fetch it again.") from None
    if not isinstance(raw, dict):
        raise ModelError(f"{directory / 'config.json'} is not a JSON object.")
    return raw


def llama_config(raw: dict[str, Any]) -> Any:
    """The transformers configuration of a drafter's layers, which may be nested as in the speculators format."""
    inner = raw.get("transformer_layer_config") or raw
    if not isinstance(inner, dict):
        raise ModelError("the drafter's config.json says transformer_layer_config, which must be an object.")
    kind = inner.get("model_type", "llama")
    kind = kind if kind in ("llama", "mistral", "qwen2", "qwen3") else "llama"
    if raw.get("quantization_config") or inner.get("quantization_config"):
        raise ModelError("the drafter holds quantised weights, which heads cannot run; take the unquantised ones.")
    for name in ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"):
        size = inner.get(name, 1)
        if size is not None and (not isinstance(size, int) or isinstance(size, bool) or size < 1):
            raise ModelError(f"the drafter's config.json says {name}={size!r}; it must be a whole number from 1 up.")
    if inner.get("hidden_act", "silu") not in ("silu", "swish"):
        raise ModelError(
            f"the drafter's config.json says hidden_act={inner['hidden_act']!r}; its layers run with silu."
        )
    try:
        return auto_config().for_model(kind, **{k: v for k, v in inner.items() if k not in ("model_type", "auto_map")})
    except ImportError:
        raise
    except Exception as error:  # the library has dozens of ways to refuse a value
        raise ModelError(f"the drafter's config.json does not describe a {kind} layer: {one_line(error)}") from None


def read_vocabulary(raw: dict[str, Any], target: int) -> int:
    """The size of the vocabulary that a head guesses from: its own, or the target's."""
    own = raw.get("draft_vocab_size")
    if own is None:
        return target
    if not isinstance(own, int) or isinstance(own, bool) or not 1 <= own <= target:
        raise ModelError(f"the drafter's config.json says draft_vocab_size={own!r}; it must be from 1 to {target}.")
    return own


def read_tensors(directory: Path, wanted: Callable[[str], bool] = lambda name: True) -> dict[str, Tensor]:
    """Every tensor of a directory that is wanted, from safetensors, else from pickles."""
    found: dict[str, Tensor] = {}
    for path in weight_files(directory):
        if path.suffix != ".safetensors":
            found |= {name: tensor for name, tensor in _unpickled_table(path).items() if wanted(name)}
            continue
        with _opened(path) as tensors:
            found |= {name: tensors.get_tensor(name) for name in tensors.keys() if wanted(name)}  # noqa: SIM118
    if not found:
        raise ModelError(f"{directory} holds no weights: no *.safetensors, *.bin or *.pt with tensors in it.")
    return found


def read_names(directory: Path) -> set[str]:
    """Names of all tensors, from the headers alone where the format has any."""
    names: set[str] = set()
    for path in weight_files(directory):
        if path.suffix != ".safetensors":
            names |= _unpickled_table(path).keys()
            continue
        with _opened(path) as tensors:
            names.update(tensors.keys())
    return names


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        with safe_open(path, framework="pt") as tensors:
            yield tensors
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{path} cannot be read, it may be cut short ({error}); fetch it again.") from None


def _unpickled_table(path: Path) -> dict[str, Tensor]:
    loaded = unpickled(path)
    if not isinstance(loaded, dict):
        raise ModelError(f"{path} is not a dictionary of tensors.")
    tensors = {str(name): tensor.detach() for name, tensor in loaded.items() if isinstance(tensor, Tensor)}
    odd = next((name for name, tensor in tensors.items() if tensor.layout != torch.strided), None)
    if odd is not None:
        raise ModelError(f"{path}: {odd} is stored as a sparse tensor, which heads cannot run; store it whole.")
    return tensors


def unpickled(path: Path) -> Any:
    """The content of a pickle, if it is tensors and nothing that could run code."""
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise ModelError(f"{path} holds more than tensors and could run code; it is not loaded.") from None
    except Exception as error:  # damaged bytes make the unpickler stumble in dozens of ways
        reason = (str(error).strip().splitlines() or [""])[0] or type(error).__name__
        raise ModelError(f"{path} cannot be read, it may be cut short ({reason}); fetch it again.") from None


class Weights:
    """Tensors taken one by one and checked; `finish` names everything that was missing, misshapen or left over."""

    def __init__(self, directory: Path, tensors: dict[str, Tensor], dtype: torch.dtype, device: torch.device) -> None:
        self.directory, self.dtype, self.device = directory, dtype, device
        self.ops: Ops = choose(device)
        self._left = dict(tensors)
        self._missing: list[str] = []
        self._wrong: list[str] = []
        self._unusable: list[str] = []

    def __contains__(self, name: str) -> bool:
        return name in self._left

    def raw(self, name: str, *shape: int) -> Tensor:
        """A tensor as stored; a missing one is noted, and zeros stand in until `finish`."""
        tensor = self._left.pop(name, None)
        if tensor is None:
            self._missing.append(name)
            return torch.zeros(shape)
        if tuple(tensor.shape) != shape:
            self._wrong.append(f"{name} is {list(tensor.shape)}, not {list(shape)}")
            return torch.zeros(shape)
        if tensor.dtype not in WHOLE and not (tensor.dtype in REAL and bool(tensor.isfinite().all())):
            why = "has NaN or infinite values" if tensor.dtype in REAL else f"is stored as {tensor.dtype}"
            self._unusable.append(f"{name} {why}")
            return torch.zeros(shape)
        return tensor

    def targets(self, vocab: int, target: int) -> Tensor | None:
        """The target's id of each token of a head's own vocabulary, from `d2t`; None where they are the same."""
        if vocab == target and "d2t" not in self:
            return None
        offsets = self.raw("d2t", vocab)
        if offsets.is_floating_point() and self._missing[-1:] != ["d2t"]:
            self._unusable.append("d2t holds fractions, not whole numbers")
        numbers = torch.arange(vocab) + offsets.to(torch.int64)
        if not 0 <= int(numbers.min()) <= int(numbers.max()) < target:
            raise ModelError(f"d2t of {self.directory} points outside the target's {target} tokens.")
        if len(numbers.unique()) < vocab:
            raise ModelError(f"d2t of {self.directory} gives several of its tokens the same number; fetch it again.")
        return numbers.to(self.device)

    def matrix(self, name: str, rows: int, columns: int) -> Tensor:
        """A matrix in the type the kernels want."""
        return self.raw(name, rows, columns).to(self.device, self.dtype).contiguous()

    def vector(self, name: str, size: int, shift: float = 0.0) -> Tensor:
        """A norm or bias, float32 on a CPU; `shift` is added to weights stored around zero."""
        return self.small(name, size, shift=shift)

    def small(self, name: str, *shape: int, shift: float = 0.0) -> Tensor:
        """A tensor of any shape that rows are multiplied with element by element, in the type of a norm."""
        kind = torch.float32 if self.device.type == "cpu" else self.dtype
        return (self.raw(name, *shape).float() + shift).to(self.device, kind)

    def linear(self, name: str, rows: int, columns: int, bias: bool | None = None) -> Linear:
        """A projection; with bias None, one is taken if it is there."""
        given = f"{name}.bias" in self if bias is None else bias
        added = self.vector(f"{name}.bias", rows) if given else None
        return Linear(self.ops, self.matrix(f"{name}.weight", rows, columns), added)

    def fused(self, names: list[str], rows: list[int], columns: int, bias: bool | None = None) -> Linear:
        """Several projections of one input as one."""
        parts = [self.linear(name, size, columns, bias) for name, size in zip(names, rows, strict=True)]
        biases = [part.bias for part in parts if part.bias is not None]
        added = torch.cat(biases) if len(biases) == len(parts) else None
        return Linear(self.ops, torch.cat([part.weight for part in parts]), added)

    @property
    def left(self) -> list[str]:
        """Names not taken yet."""
        return list(self._left)

    def move_into(self, room: str, besides: tuple[str, ...]) -> None:
        """Prefix every tensor left but `besides` with `room`, for layouts that spread a layer over their top level."""
        if besides:
            self._left = {
                name if name.startswith(besides) else f"{room}.{name}": tensor for name, tensor in self._left.items()
            }

    def take_all(self, prefix: str) -> dict[str, Tensor]:
        """Take every tensor below a prefix, by the rest of its name."""
        taken = [name for name in self._left if name.startswith(prefix)]
        return {name.removeprefix(prefix): self._left.pop(name) for name in taken}

    def drop(self, *names: str) -> None:
        """Discard tensors that may be there and are not needed."""
        for name in names:
            self._left.pop(name, None)

    def finish(self, what: str) -> None:
        """Raise unless every tensor was there, fitted and was taken."""
        extra = sorted(name for name in self._left if not DERIVED.search(name))
        found = {"missing": self._missing, "wrong shape": self._wrong, "unusable": self._unusable, "unexpected": extra}
        faults = [f"{fault}: {_some(names)}" for fault, names in found.items() if names]
        if faults:
            raise ModelError(f"{self.directory} holds no {what} for this target; {'; '.join(faults)}")


def _some(names: list[str]) -> str:
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
