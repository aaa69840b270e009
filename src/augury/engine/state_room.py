"""How much memory recurrent states get: two for every slot, and some that are kept for other requests to find."""

from __future__ import annotations

from typing import NamedTuple

from augury.config.engine import EngineConfig
from augury.config.errors import ConfigError
from augury.model.states import line_bytes, slot_bytes
from augury.model.target import Target, bytes_per_token

KEPT, FEWEST = 4, 64  # states kept: so many per slot, and no fewer in all, as far as memory allows
SHARE = 4  # they take at most one part in so many of the cache's memory
CHUNK = 256  # tokens of a prompt between two saved states, at least: each ends a prefill chunk


class StateRoom(NamedTuple):
    """The room that an engine's recurrent states take."""

    lines: int  # states kept for other requests
    every: int  # blocks of a prompt between two of them
    num_bytes: int  # of all, those in use included


def most_slots(target: Target, nodes: int, cache_bytes: int, wanted: int) -> int:
    """Slots whose states fit in half of the cache's memory, at most `wanted`."""
    if not target.state_shapes:
        return wanted
    return max(1, min(wanted, cache_bytes // 2 // slot_bytes(target.state_shapes, nodes)))


def state_room(config: EngineConfig, target: Target, nodes: int, cache_bytes: int) -> StateRoom:
    """Divide the cache's memory between states and blocks; refuses if not even the slots' states fit."""
    if not target.state_shapes:
        return StateRoom(0, 1, 0)
    assert config.max_num_seqs
    line = line_bytes(target.state_shapes)
    own = (config.max_num_seqs + 1) * slot_bytes(target.state_shapes, nodes)
    if own >= cache_bytes and not config.num_gpu_blocks_override:
        raise ConfigError(
            f"max_num_seqs={config.max_num_seqs} needs {own / 2**30:.1f} GiB for recurrent states alone, and the cache "
            f"has {cache_bytes / 2**30:.1f}; lower it, or raise kv_cache_memory_bytes or gpu_memory_utilization."
        )
    # Without a prefix cache only the n answers to one prompt share a state.
    seqs = config.max_num_seqs
    kept = max(FEWEST, KEPT * seqs) if config.enable_prefix_caching else seqs
    lines = min(kept, cache_bytes // SHARE // line)
    # A state should not take more than the blocks that lead to it; without attention these take nothing.
    block = bytes_per_token(target.layer_shapes, target.cache_dtype) * config.block_size
    every = max(-(-line // block) if block else 1, -(-CHUNK // config.block_size))
    return StateRoom(lines, every, own + lines * line)
