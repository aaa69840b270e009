"""Assembling the ranks of an engine that is divided among several devices."""

from __future__ import annotations

import os
from pathlib import Path

from augury.config.engine import EngineConfig
from augury.config.errors import ConfigError
from augury.engine.build import IMPLEMENTATIONS
from augury.engine.follower import launched
from augury.engine.team import Team, assemble, is_launched
from augury.model.checkpoint import layers_config
from augury.model.load import check_split


def join(config: EngineConfig, directory: Path, lent: bool) -> Team | None:
    """The ranks of an engine, or None if it has only one. In torchrun's other processes this never returns."""
    size = config.tensor_parallel_size
    if size == 1:
        return None
    if lent:
        raise ConfigError(f"weights_of cannot be combined with tensor_parallel_size={size}; leave one out.")
    check_split(layers_config(directory), IMPLEMENTATIONS.get(config.model_impl, config.model_impl), size)
    if is_launched(size) and int(os.environ["RANK"]) > 0:
        launched(config)
    return assemble(config)
