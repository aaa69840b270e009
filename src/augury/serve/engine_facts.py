"""What the server knows of the engine that it has started."""

from __future__ import annotations

from typing import Any

from augury.engine.llm import LLM
from augury.engine.scheduler import Scheduler
from augury.verify.rules import RULES


def facts(llm: LLM) -> dict[str, Any]:
    """What the server must know of the engine it has started."""
    spec, config = llm.config.speculative_config, llm.config
    return {
        "max_model_len": config.max_model_len,
        "vocab_size": llm.engine.target.vocab_size,
        "device": config.device,
        "num_spec_tokens": spec.num_speculative_tokens if spec else None,
        "method": spec.method if spec else None,
        "rule": spec.rule if spec else None,
        "lossy": spec is not None and not RULES[spec.rule].lossless,
        "speculative_config": spec.to_dict() if spec else None,
        "max_loras": config.max_loras if config.enable_lora else None,
        "cache": {
            "block_size": config.block_size,
            "num_gpu_blocks": llm.engine.scheduler.pool.num_blocks,
            "enable_prefix_caching": config.enable_prefix_caching,
            "gpu_memory_utilization": config.gpu_memory_utilization,
        },
    }


def adapters_in_use(scheduler: Scheduler) -> tuple[list[str], list[str]]:
    """The names of the LoRA adapters of running and of waiting requests."""
    running, waiting = (
        sorted({request.lora.name for request in requests if request.lora is not None})
        for requests in (scheduler.running, scheduler.waiting)
    )
    return running, waiting
