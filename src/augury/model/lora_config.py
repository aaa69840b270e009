"""Reads adapter_config.json, an untrusted file: only what is needed is used, and only after checks."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from augury.config.errors import ConfigError
from augury.config.files import CONFIG_BYTES, read_regular
from augury.model.errors import ModelError

CONFIG = "adapter_config.json"
# Settings that change the arithmetic and are not supported; each with the values that leave them off.
REFUSED: dict[str, tuple[Any, ...]] = {
    "use_dora": (None, False),
    "bias": (None, "none"),
    "modules_to_save": (None, []),
    "fan_in_fan_out": (None, False),
    "layer_replication": (None, []),
    "lora_bias": (None, False),
    "alora_invocation_tokens": (None, []),
    "trainable_token_indices": (None, [], {}),
}
NAMES = re.compile(r"[\w.]{1,300}")  # a plain name: any other pattern would be an untrusted regular expression
SHOWN = 60  # characters of a value that an error repeats


@dataclass(frozen=True, slots=True)
class Scaling:
    """The factor that an adapter's products are multiplied by."""

    alpha: float | None  # None: the rank itself
    own: dict[str, float]  # alphas of single projections, by the end of their names
    by_root: bool  # over the root of the rank instead of the rank

    def of(self, name: str, rank: int) -> float:
        """peft's scaling of one projection; the first pattern that matches its name gives it an alpha of its own."""
        fits = (own for end, own in self.own.items() if f".{name}".endswith(f".{end}"))
        alpha = next(fits, rank if self.alpha is None else self.alpha)
        return alpha / (math.sqrt(rank) if self.by_root else rank)


def read_scaling(directory: Path, max_rank: int) -> Scaling:
    """The scaling that an adapter's configuration asks for; a ModelError where it asks for anything unsupported."""
    config = _read(directory)
    if config.get("peft_type") != "LORA":
        raise ModelError(f"{directory}: {CONFIG} is of another kind than peft_type 'LORA'.")
    for name, nothing in REFUSED.items():
        if config.get(name) not in nothing:
            raise ModelError(
                f"{directory}: {name}={_shown(config[name])} is not supported; train the adapter without it."
            )
    _check_rank(directory, config.get("r"), max_rank)
    alpha = config.get("lora_alpha")
    by_root = config.get("use_rslora")
    if by_root not in (None, False, True):
        raise ModelError(f"{directory}: use_rslora={_shown(by_root)} must be true or false.")
    return Scaling(
        None if alpha is None else _number(directory, "lora_alpha", alpha),
        _own(directory, config.get("alpha_pattern")),
        bool(by_root),
    )


def _read(directory: Path) -> dict[str, Any]:
    try:
        config = json.loads(read_regular(directory / CONFIG, CONFIG_BYTES).decode("utf-8-sig"))
    except ConfigError:
        raise ModelError(f"{directory}: {CONFIG} is not a regular file, or too large.") from None
    except OSError as error:
        why = error.strerror
        raise ModelError(f"{directory}: {CONFIG} cannot be read ({why}); give a directory of peft's.") from None
    except (ValueError, RecursionError):
        raise ModelError(f"{directory}: {CONFIG} is not JSON.") from None
    if not isinstance(config, dict):
        raise ModelError(f"{directory}: {CONFIG} is not a JSON object.")
    return config


def _check_rank(directory: Path, rank: Any, max_rank: int) -> None:
    if rank is None:
        return
    if not isinstance(rank, int) or isinstance(rank, bool) or rank < 1:
        raise ModelError(f"{directory}: r={_shown(rank)} must be a whole number from 1 up.")
    if rank > max_rank:
        raise ModelError(f"{directory}: rank {_shown(rank)} is more than max_lora_rank={max_rank}; raise that.")


def _own(directory: Path, patterns: Any) -> dict[str, float]:
    if patterns is None:
        return {}
    if not isinstance(patterns, dict):
        raise ModelError(f"{directory}: alpha_pattern={_shown(patterns)} must be an object of numbers by name.")
    for name in patterns:
        if NAMES.fullmatch(name) is None:
            raise ModelError(
                f"{directory}: alpha_pattern {_shown(name)} is not a name; names such as q_proj or "
                "layers.3.self_attn.q_proj are taken, regular expressions are not."
            )
    return {name: _number(directory, f"alpha_pattern.{name[:SHOWN]}", value) for name, value in patterns.items()}


def _number(directory: Path, name: str, value: Any) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < math.inf:
        try:
            return float(value)
        except OverflowError:
            pass
    raise ModelError(f"{directory}: {name}={_shown(value)} must be a number.")


def _shown(value: Any) -> str:
    """A value as the file has it, cut to SHOWN characters."""
    text = json.dumps(value)
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 3]}..."
