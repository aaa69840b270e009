"""An engine of several ranks, from the side of who asks for it."""

from __future__ import annotations

import os

from augury.config.engine import EngineConfig
from augury.config.errors import ConfigError
from augury.engine.follower import launched
from augury.engine.team import Team, assemble, is_launched


def join(config: EngineConfig, lent: bool) -> Team | None:
    """The ranks of an engine; None where it has one. In torchrun's other processes this never returns."""
    size = config.tensor_parallel_size
    if size == 1:
        return None
    if lent:
        raise ConfigError(f"weights_of does not go with tensor_parallel_size={size}; leave one out.")
    if is_launched(size) and int(os.environ["RANK"]) > 0:
        launched(config)
    return assemble(config)
