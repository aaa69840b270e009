"""What an engine of several ranks supports, and what it refuses by name."""

from __future__ import annotations

import os

import torch

from augury.config.engine import EngineConfig
from augury.config.errors import ConfigError
from augury.drafters.base import Drafter
from augury.methods.registry import drafter_class
from augury.parallel.ranks import Ranks

THREADS = "OMP_NUM_THREADS"


def check_parallel(config: EngineConfig) -> None:
    """Refuse, in one line and before anything is started, an engine that cannot be divided."""
    size = config.tensor_parallel_size
    if config.enable_lora:
        raise ConfigError(f"enable_lora cannot be combined with tensor_parallel_size={size} yet; leave one out.")
    if config.kv_offloading_size is not None:
        raise ConfigError(f"kv_offloading_size cannot be combined with tensor_parallel_size={size} yet; leave one out.")
    spec = config.speculative_config
    if spec is not None and any(part.card.has_weights for part in spec.parts):
        raise ConfigError(
            f"speculative_config.method={spec.method!r} with a drafter that has weights cannot be combined with "
            f"tensor_parallel_size={size} yet; use the drafters one by one, or write tensor_parallel_size=1."
        )
    check_devices(config, size)


def check_devices(config: EngineConfig, size: int) -> None:
    """Refuse more ranks than there are GPUs, or cores."""
    if config.device == "cpu" or not torch.cuda.is_available():
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        if size > cores and THREADS not in os.environ:
            raise ConfigError(
                f"tensor_parallel_size={size} needs a core for each rank, and this process has {cores}; write {cores} "
                f"or less, or set {THREADS}=1 to let ranks share cores."
            )
        return
    if size > (found := torch.cuda.device_count()):
        raise ConfigError(
            f"tensor_parallel_size={size} needs that many GPUs, but torch sees {found}; use {found} or fewer, or "
            "device='cpu'."
        )


def divides_drafter(config: EngineConfig) -> bool:
    """Whether the drafter's weights are divided, too; otherwise every rank has them whole."""
    spec = config.speculative_config
    if spec is None or not spec.card.divided:
        return False
    return spec.draft_tensor_parallel_size != 1


def drafts_here(config: EngineConfig, ranks: Ranks | None) -> bool:
    """Whether this rank has the drafter: one on the host is rank 0's alone."""
    spec = config.speculative_config
    if spec is None or ranks is None or ranks.rank == 0:
        return True
    built: type[Drafter] = drafter_class(spec.card)
    return not built.on_host


def check_saver(drafter: Drafter | None, ranks: Ranks | None) -> None:
    """Refuse drafters that write files for every request, because every rank would write them."""
    if ranks is not None and drafter is not None and drafter.saver is not None:
        raise ConfigError(
            f"method={drafter.name!r} cannot be combined with tensor_parallel_size={ranks.size}; write 1."
        )
