"""`augury serve`: the server's settings from its options, and a run until it is told to end."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from typing import Any

from augury.config.lora import read_modules
from augury.model.errors import ModelError
from augury.serve.limits import Limits
from augury.serve.parsers.choose import named_parsers
from augury.serve.server import ServeError, Server
from augury.serve.service import Settings
from augury.serve.visitors import is_loopback
from augury.tools.run.options import API_KEYS, ServerOptions
from augury.tools.shared.safe_text import safe_text


def settings_of(model: str, engine: dict[str, Any], given: ServerOptions) -> Settings:
    """What the server works with; keys come from the environment, too."""
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


def run(settings: Settings) -> int:
    """Serve until told to end; the exit code."""
    logging.basicConfig(format="%(levelname)s %(asctime)s %(message)s", datefmt="%m-%d %H:%M:%S", stream=sys.stderr)
    logging.getLogger("augury").setLevel(logging.DEBUG if os.environ.get("AUGURY_DEBUG") else logging.INFO)
    if settings.access_log:
        logging.getLogger("uvicorn.access").setLevel(logging.INFO)
    try:
        asyncio.run(Server(settings).run())
    except (ServeError, ModelError, OSError) as error:
        if os.environ.get("AUGURY_DEBUG"):
            raise
        print(safe_text(f"error: {' '.join(str(error).split())}"), file=sys.stderr)
        return 1
    return 0
