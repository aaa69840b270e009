"""vLLM's arguments that change nothing here: how it compiles, lays out or logs. They are accepted, with a note."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from augury.config.errors import ConfigError

OWN_KERNELS = "Augury has kernels and graphs of its own"
ONE_DEVICE = "the model runs on one device"
HARMLESS = {
    "trust_remote_code": "code of a checkpoint's own never runs here; a model that needs it is refused",
    "compilation_config": OWN_KERNELS,
    "optimization_level": OWN_KERNELS,
    "attention_backend": OWN_KERNELS,
    "attention_config": OWN_KERNELS,
    "kernel_config": OWN_KERNELS,
    "moe_backend": OWN_KERNELS,
    "disable_cascade_attn": OWN_KERNELS,
    "cuda_graph_sizes": OWN_KERNELS,
    "cudagraph_capture_sizes": OWN_KERNELS,
    "max_cudagraph_capture_size": OWN_KERNELS,
    "max_seq_len_to_capture": OWN_KERNELS,
    "performance_mode": OWN_KERNELS,
    "enable_expert_parallel": ONE_DEVICE,
    "enable_eplb": ONE_DEVICE,
    "all2all_backend": ONE_DEVICE,
    "disable_custom_all_reduce": ONE_DEVICE,
    "max_parallel_loading_workers": ONE_DEVICE,
    "ray_workers_use_nsight": ONE_DEVICE,
    "swap_space": "preempted requests are computed again",
    "num_scheduler_steps": "it has been without effect since vLLM's first engine went",
    "use_v2_block_manager": "it has been without effect since vLLM's first engine went",
    "scheduler_reserve_full_isl": "blocks are reserved as texts grow",
    "stream_interval": "a stream has every token as it comes",
    "limit_mm_per_prompt": "the model reads text",
    "mm_processor_kwargs": "the model reads text",
    "mm_processor_cache_gb": "the model reads text",
    "config_format": "it is inferred from the files",
    "kv_cache_metrics": "the figures are there in any case",
    "show_hidden_metrics_for_version": "there are none",
    "max_log_len": "prompts are not logged",
    "enable_log_requests": "prompts are not logged",
    "disable_log_requests": "prompts are not logged",
}
# For `LLM(...)` only: in a server these have an effect.
OF_A_SERVER = {
    "served_model_name": "it names a server's model, and there is no server",
    "generation_config": "sampling defaults are for servers; generate() takes SamplingParams",
}
# For `serve` only.
FLAGS = {
    "enable_reasoning": "--reasoning-parser alone says how reasoning is read",
    "enable_server_load_tracking": "GET /load is there in any case",
    "disable_frontend_multiprocessing": "the server and its engine are two processes",
    "uvicorn_log_level": "the log has errors, statistics and, if asked, a line for each request",
}
SWITCHES = (
    "trust_remote_code",
    "disable_cascade_attn",
    "enable_expert_parallel",
    "enable_eplb",
    "disable_custom_all_reduce",
    "ray_workers_use_nsight",
    "use_v2_block_manager",
    "scheduler_reserve_full_isl",
    "kv_cache_metrics",
    "enable_log_requests",
    "disable_log_requests",
    "enable_reasoning",
    "enable_server_load_tracking",
    "disable_frontend_multiprocessing",
)
# Keys of config.json that only name things.
NAMES = ("_name_or_path", "transformers_version", "use_cache", "torch_dtype", "dtype")


def remark(name: str) -> str:
    """Why an argument changes nothing."""
    key = name.removeprefix("--").replace("-", "_")
    return f"{name} changes nothing here: {(HARMLESS | OF_A_SERVER | FLAGS)[key]}"


def check_overrides(overrides: Mapping[str, Any] | None, raw: Mapping[str, Any] | None) -> None:
    """Accept hf_overrides that repeat config.json; others would change the model, and are refused."""
    for name, value in (overrides or {}).items():
        if name in NAMES or (raw is not None and raw.get(name) == value):
            continue
        stated = f"config.json has {raw.get(name)!r}" if raw is not None else "config.json could not be read"
        raise ConfigError(f"hf_overrides.{name}={value!r} is not applied here, and {stated}; change it there.")
