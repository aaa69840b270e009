"""Whether prefixes may go to host memory, and how many blocks of them there is room for."""

from __future__ import annotations

import os

from augury.config.engine import EngineConfig
from augury.config.errors import ConfigError
from augury.drafters.base import Drafter
from augury.engine.host_lines import HostLines
from augury.engine.offload import Offload
from augury.model.target import Target
from augury.observe.stats import EngineStats


def make_offload(
    config: EngineConfig, target: Target, drafter: Drafter | None, blocks: int, stats: EngineStats
) -> Offload | None:
    """Host memory for cold prefixes, if any is asked for; target and drafter have their caches by now."""
    if config.kv_offloading_size is None:
        return None
    _check(config, target)
    room = int(config.kv_offloading_size * 2**30)
    stores = [*target.cache.stores, *(drafter.stores if drafter is not None else ())]
    lines = HostLines(stores, blocks, room)
    if not lines.num_lines:
        raise ConfigError(
            f"kv_offloading_size={config.kv_offloading_size} has no room for one block of {config.block_size} tokens "
            f"({lines.line_bytes / 2**20:.1f} MiB); raise it."
        )
    return Offload(lines, stats)


def _check(config: EngineConfig, target: Target) -> None:
    """Refuse configurations in which prefixes cannot go to host memory."""
    size = config.kv_offloading_size
    assert size is not None
    if not config.enable_prefix_caching:
        raise ConfigError(f"kv_offloading_size={size} keeps prefixes, and enable_prefix_caching is off; leave one out.")
    if target.state_shapes:
        raise ConfigError(
            f"kv_offloading_size={size} cannot be combined with recurrent layers yet: their saved states stay on the "
            "device, and blocks are of no use without them; leave it out."
        )
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    if size > memory:
        raise ConfigError(
            f"kv_offloading_size={size} is more than this machine's memory of {memory:.0f} GiB; lower it."
        )
