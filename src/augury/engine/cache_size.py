"""How many blocks the KV cache has: what fits into a device's memory, and what requests can use."""

from __future__ import annotations

import logging
import os

import torch

from augury.config.engine import EngineConfig
from augury.config.errors import ConfigError
from augury.drafters.base import Drafter
from augury.kernels.faces import face
from augury.model.target import Target, bytes_per_token

logger = logging.getLogger("augury")
CPU_CACHE_BYTES = 2 << 30  # pages are only touched when used
GPU_RESERVE_BYTES = 4 << 30  # for activations and graphs


def cache_type(config: EngineConfig, target: Target) -> torch.dtype:
    """The type of the target's keys and values: the model's own, or 8-bit floats where kernels can read them."""
    asked = config.kv_cache_dtype
    if asked == "auto":
        return target.cache_dtype
    if face(target.device) == "numba":
        raise ConfigError(f"kv_cache_dtype={asked!r} runs on a GPU only; leave it out on a CPU.")
    short = target.device.type == "cuda" and torch.cuda.get_device_capability(target.device) < (8, 9)
    if short and asked != "fp8_e5m2":
        raise ConfigError(f"kv_cache_dtype={asked!r} needs a GPU from Ada on; use 'fp8_e5m2' or leave it out.")
    return torch.float8_e5m2 if asked == "fp8_e5m2" else torch.float8_e4m3fn


def num_blocks(config: EngineConfig, target: Target, drafter: Drafter | None, taken: int) -> int:
    """Number of blocks that fit into the cache's memory less `taken` bytes, the null block included; a context length
    left open shrinks to what they hold."""
    size, per_token = config.block_size, bytes_per_token(target.layer_shapes, cache_type(config, target))
    if drafter is not None:
        per_token += drafter.bytes_per_token
    assert config.max_num_seqs
    longest = config.max_model_len or target.max_position
    extra = config.speculative_config.max_nodes if config.speculative_config else 0
    # All requests at full length; four times as much if old prefixes are worth keeping.
    useful = config.max_num_seqs * -(-(longest + extra) // size) * (4 if config.enable_prefix_caching else 1) + 1
    free = max(0, cache_bytes(config, target) - taken)
    # A model without attention caches nothing per token: blocks only count its tokens and name its saved states.
    fitting = free // (per_token * size) + 1 if per_token else useful
    blocks = config.num_gpu_blocks_override or min(useful, fitting)
    if target.split is not None:  # a rank with more heads than others has room for fewer blocks
        blocks = target.split.ranks.least(blocks)
    room = (blocks - 1) * size
    if config.max_model_len is None and room:
        config.max_model_len = min(longest, room)
        if room < longest:
            beside = " after the drafter's share" if drafter is not None else ""
            said = "max_model_len is %d, what the KV cache has room for%s; the model's context is %d."
            logger.warning(said, room, beside, longest)
    elif config.max_model_len is None or config.max_model_len > room:
        wanted = f"max_model_len={config.max_model_len}" if config.max_model_len else "even one block of tokens"
        raise ConfigError(
            f"{wanted} needs more KV cache than there is (room for {room} tokens{_who_has_memory(config, target)}); "
            "lower it, or raise kv_cache_memory_bytes, gpu_memory_utilization or num_gpu_blocks_override."
        )
    return blocks


def _who_has_memory(config: EngineConfig, target: Target) -> str:
    """On a GPU whose free memory was measured: how much was in use before the cache, by this process and by others."""
    if target.device.type != "cuda" or config.kv_cache_memory_bytes or config.num_gpu_blocks_override:
        return ""
    free, total = torch.cuda.mem_get_info(target.device)
    ours = torch.cuda.memory_reserved(target.device)
    here, elsewhere = (round(n / 2**30, 1) for n in (ours, total - free - ours))
    return f"; of {total / 2**30:.0f} GiB this process has {here}, others and the driver {elsewhere}"


def cache_bytes(config: EngineConfig, target: Target) -> int:
    """Bytes that this device has for the cache; with several ranks the least of all, as they have as many blocks."""
    room = _own_bytes(config, target)
    return room if target.split is None else target.split.ranks.least(room)


def _own_bytes(config: EngineConfig, target: Target) -> int:
    if config.kv_cache_memory_bytes:
        return config.kv_cache_memory_bytes
    if target.device.type == "cuda":
        free, total = torch.cuda.mem_get_info(target.device)
        return max(0, int(total * config.gpu_memory_utilization) - (total - free) - GPU_RESERVE_BYTES)
    return min(CPU_CACHE_BYTES, os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2)
