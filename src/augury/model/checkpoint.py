"""A model directory: its configuration, and its safetensors, one file or shards, read by name when asked for."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from augury.model.configurations import auto_config
from augury.model.errors import ModelError, one_line
from augury.model.plain_config import plain_config
from augury.model.plausible import check_plausible
from augury.model.weight_files import SAFE, index_of, indexed

SAME_LAYERS = {"mimo": "qwen2"}  # MiMo-7B: Qwen2's layers, and MTP layers in addition
DERIVED = re.compile(r"rotary_emb\.inv_freq$")  # old checkpoints store what can be computed


class Checkpoint:
    """Open weights of a directory; a context manager."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._open = ExitStack()
        self._home: dict[str, Any] = {}  # name -> open file
        try:
            for path in _files(directory):
                handle = self._open.enter_context(_safe_open(path))
                self._home.update(dict.fromkeys(handle.keys(), handle))
        except ModelError:
            self._open.close()
            raise

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    def __contains__(self, name: str) -> bool:
        return name in self._home

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of one tensor, from the header alone."""
        return tuple(self._home[name].get_slice(name).get_shape())

    def dtype(self) -> str:
        """The type of the first matrix, by safetensors' names: F32, F16, BF16."""
        name = next((n for n in self._home if len(self.shape(n)) == 2), None)
        return "F32" if name is None else self.kind(name)

    def kind(self, name: str) -> str:
        """The type of one tensor, by safetensors' names."""
        return str(self._home[name].get_slice(name).get_dtype())

    def require(self, expected: dict[str, tuple[int, ...]], spare: Callable[[str], bool] = lambda name: False) -> None:
        """Raise a ModelError that names missing, extra and misshapen tensors; `spare` ones may be there or not."""
        missing = sorted(expected.keys() - self._home.keys())
        extra = sorted(n for n in self._home.keys() - expected.keys() if not spare(n) and not DERIVED.search(n))
        wrong = [
            f"{name} is {list(self.shape(name))}, not {list(shape)}"
            for name, shape in sorted(expected.items())
            if name in self._home and self.shape(name) != shape
        ]
        found = {"missing": missing, "unexpected": extra, "wrong shape": wrong}
        faults = [f"{fault}: {_some(names)}" for fault, names in found.items() if names]
        if faults:
            raise ModelError(f"the weights in {self.directory} do not fit its config.json; {'; '.join(faults)}")

    def tensor(self, name: str) -> Tensor:
        """Read one tensor."""
        try:
            tensor: Tensor = self._home[name].get_tensor(name)
        except SafetensorError as error:
            raise ModelError(f"cannot read {name} from {self.directory}: {error}") from error
        return tensor


def read_config(directory: Path, quantised: bool = False) -> Any:
    """The transformers configuration of a directory; never runs code that came with it.

    `quantised`: the caller can read quantised weights, or reads none.
    """
    if not (directory / "config.json").is_file():
        raise ModelError(f"{directory} is not a model directory: it has no config.json.")
    check_plausible(directory)
    try:
        config = _known_config(directory)
    except ImportError:
        raise
    except Exception as error:  # the library trusts the file, and then divides by zero heads, for example
        raise ModelError(f"cannot read {directory / 'config.json'}: {one_line(error)}") from error
    found, text = getattr(config, "quantization_config", None), config.get_text_config(decoder=True)
    if found and not (quantised and text is config):
        raise ModelError(
            f"{directory} holds quantised weights, which are not supported here; use the unquantised checkpoint."
        )
    return text


def layers_config(directory: Path) -> Any:
    """What the dense family's layers depend on: read_config's, without transformers where that adds nothing.

    Quantised models and those of other families pass: callers that can run these find out by it.
    """
    check_plausible(directory)
    return plain_config(directory) or read_config(directory, quantised=True)


def nested_config(directory: Path, inner: Any) -> Any:
    """The transformers configuration that another one holds; never runs code that came with it."""
    try:
        own = {key: value for key, value in dict(inner).items() if key not in ("model_type", "auto_map")}
        return auto_config().for_model(str(inner["model_type"]), **own)
    except ImportError:
        raise
    except Exception as error:  # see read_config
        raise ModelError(f"cannot read the layers in {directory / 'config.json'}: {one_line(error)}") from error


def _known_config(directory: Path) -> Any:
    """transformers' configuration; a type that it does not know, with the layers of another, is read as that one."""
    raw = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    same = SAME_LAYERS.get(str(raw.get("model_type"))) if isinstance(raw, dict) else None
    if same is None:
        return auto_config().from_pretrained(directory, trust_remote_code=False, local_files_only=True)
    return auto_config().for_model(same, **{k: v for k, v in raw.items() if k not in ("model_type", "auto_map")})


def _files(directory: Path) -> list[Path]:
    if (directory / SAFE).is_file():
        return [directory / SAFE]
    index = index_of(directory, SAFE)
    if not index.is_file():
        raise ModelError(f"{directory} has no weights: neither {SAFE} nor {index.name} is there.")
    return indexed(index)


def _safe_open(path: Path) -> Any:
    try:
        with path.open("rb"):  # safetensors reports an unreadable file as missing
            pass
        return safe_open(path, framework="pt")
    except PermissionError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}.") from error
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{path} cannot be read, it may be cut short ({error}); fetch it again.") from error


def _some(names: list[str]) -> str:
    """The first six names and how many more there are: a checkpoint of another model would fill the screen."""
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
