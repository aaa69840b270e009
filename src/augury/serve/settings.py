"""The server's settings from its options."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from augury.config.errors import ConfigError
from augury.config.lora import read_modules
from augury.serve.limits import Limits
from augury.serve.options import API_KEYS, ServerOptions
from augury.serve.parsers.choose import named_parsers
from augury.serve.service import Settings
from augury.serve.visitors import is_loopback


def settings_of(model: str, engine: dict[str, Any], given: ServerOptions) -> Settings:
    """What the server works with; keys come from the environment, too."""
    if given.swap_from is not None and not given.on_ray and not Path(given.swap_from).is_dir():
        raise ConfigError(f"--swap-from {given.swap_from}: no such directory; name the one that drafters lie under.")
    limits = Limits(
        [*(given.api_key or ()), *(key for name in API_KEYS if (key := os.environ.get(name)))],
        given.max_concurrent_requests,
        given.max_request_bytes,
        given.read_timeout,
        given.uds is None and is_loopback(given.host),
        [name.lower() for name in given.allowed_host or ()],
        given.write_timeout,
        given.share_between_keys,
    )
    return Settings(
        model,
        engine,
        list(given.served_model_name or [model]),
        given.host,
        given.port,
        given.uds,
        limits,
        given.per_request_spec_decode_metrics,
        not given.disable_log_stats,
        given.log_stats_interval,
        given.enable_access_log,
        given.shutdown_timeout,
        given.generation_config,
        given.collect,
        given.collect_tokens,
        read_modules(given.lora_modules),
        given.lora_from,
        given.otlp_traces_endpoint,
        given.swap_from,
        given.enable_auto_tool_choice,
        named_parsers(given.tool_call_parser, given.reasoning_parser),
    )
