"""`augury serve`: the options, and an exit code."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from typing import Annotated, Any, Literal

import typer

from augury.config import surfaces
from augury.config.engine import EngineConfig
from augury.config.errors import ConfigError
from augury.model.errors import ModelError
from augury.tools.shared.safe_text import safe_text

KEYS = ("AUGURY_API_KEY", "VLLM_API_KEY")
INTERVAL = "VLLM_LOG_STATS_INTERVAL"
SPECULATION, NETWORK, LIMITS, LOG, ENGINE = "Speculation", "Where, and for whom", "Limits", "Log", "Engine"  # panels


def serve(
    model: Annotated[str, typer.Argument(help="'default', a directory, a .gguf file, or a hub id.")] = "default",
    speculative_config: Annotated[
        str | None,
        typer.Option(
            "--speculative-config",
            "-sc",
            metavar="JSON",
            help="How to speculate, as in vLLM.",
            rich_help_panel=SPECULATION,
        ),
    ] = None,
    spec_method: Annotated[str | None, typer.Option(help="Its 'method'.", rich_help_panel=SPECULATION)] = None,
    spec_model: Annotated[str | None, typer.Option(help="Its 'model'.", rich_help_panel=SPECULATION)] = None,
    spec_tokens: Annotated[
        int | None, typer.Option(help="Its 'num_speculative_tokens'.", rich_help_panel=SPECULATION)
    ] = None,
    host: Annotated[
        str, typer.Option(help="Where to listen; 0.0.0.0 for every interface.", rich_help_panel=NETWORK)
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.", rich_help_panel=NETWORK)] = 8000,
    uds: Annotated[
        str | None, typer.Option(metavar="PATH", help="Listen on a Unix socket instead.", rich_help_panel=NETWORK)
    ] = None,
    api_key: Annotated[
        list[str] | None,
        typer.Option(help=f"Clients must know it; may be repeated. Also {' or '.join(KEYS)}.", rich_help_panel=NETWORK),
    ] = None,
    share_between_keys: Annotated[
        bool,
        typer.Option(
            "--share-between-keys",
            help="Keys use each other's cached prompts and learn from each other's answers, and can read them so.",
            rich_help_panel=NETWORK,
        ),
    ] = False,
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="A name that browsers may know the server by, besides its address; may be repeated.",
            rich_help_panel=NETWORK,
        ),
    ] = None,
    served_model_name: Annotated[
        list[str] | None,
        typer.Option(help="The model's names for clients; several may follow.", rich_help_panel=NETWORK),
    ] = None,
    max_concurrent_requests: Annotated[int, typer.Option(min=1, help="More get 429.", rich_help_panel=LIMITS)] = 1024,
    max_request_bytes: Annotated[int, typer.Option(min=1, help="Larger ones get 413.", rich_help_panel=LIMITS)] = 16
    << 20,
    read_timeout: Annotated[
        float, typer.Option(min=0.1, help="Seconds a client has to send its request.", rich_help_panel=LIMITS)
    ] = 30.0,
    write_timeout: Annotated[
        float, typer.Option(min=0.1, help="Seconds a client may take nothing of its answer.", rich_help_panel=LIMITS)
    ] = 30.0,
    per_request_spec_decode_metrics: Annotated[
        Literal["none", "summary", "detailed"],
        typer.Option(help="What each response says of speculation.", rich_help_panel=SPECULATION),
    ] = "summary",
    disable_log_stats: Annotated[
        bool, typer.Option("--disable-log-stats", help="No line every ten seconds.", rich_help_panel=LOG)
    ] = False,
    log_stats_interval: Annotated[
        float, typer.Option(min=0.1, envvar=INTERVAL, help="Seconds between two lines.", rich_help_panel=LOG)
    ] = 10.0,
    enable_access_log: Annotated[
        bool, typer.Option("--enable-access-log", help="A line for each request.", rich_help_panel=LOG)
    ] = False,
    shutdown_timeout: Annotated[
        float, typer.Option(min=0, help="Seconds that running requests may take to finish.", rich_help_panel=LIMITS)
    ] = 30.0,
    generation_config: Annotated[
        str,
        typer.Option(
            help="Sampling defaults: 'auto' are the model's own, 'vllm' none, or a directory's.", rich_help_panel=ENGINE
        ),
    ] = "auto",
    tokenizer: Annotated[str | None, typer.Option(help="If not the model's own.", rich_help_panel=ENGINE)] = None,
    dtype: Annotated[str, typer.Option(rich_help_panel=ENGINE)] = "auto",
    device: Annotated[str, typer.Option(rich_help_panel=ENGINE)] = "auto",
    max_model_len: Annotated[
        int | None, typer.Option(help="Longest prompt and answer together.", rich_help_panel=ENGINE)
    ] = None,
    max_num_seqs: Annotated[int | None, typer.Option(help="Most requests in one step.", rich_help_panel=ENGINE)] = None,
    max_num_batched_tokens: Annotated[
        int | None, typer.Option(help="Most tokens in one step.", rich_help_panel=ENGINE)
    ] = None,
    long_prefill_token_threshold: Annotated[
        int, typer.Option(help="Most prompt tokens of a request in a step.", rich_help_panel=ENGINE)
    ] = 0,
    block_size: Annotated[int, typer.Option(help="Tokens in a block of the cache.", rich_help_panel=ENGINE)] = 16,
    num_gpu_blocks_override: Annotated[
        int | None, typer.Option(help="Blocks of the cache.", rich_help_panel=ENGINE)
    ] = None,
    kv_cache_memory_bytes: Annotated[
        int | None, typer.Option(help="Bytes of the cache.", rich_help_panel=ENGINE)
    ] = None,
    gpu_memory_utilization: Annotated[
        float, typer.Option(help="Share of the GPU's memory to use.", rich_help_panel=ENGINE)
    ] = 0.9,
    enable_prefix_caching: Annotated[
        bool, typer.Option(help="Reuse what prompts have in common.", rich_help_panel=ENGINE)
    ] = True,
    enable_chunked_prefill: Annotated[
        bool, typer.Option(help="Read long prompts piece by piece.", rich_help_panel=ENGINE)
    ] = True,
    enforce_eager: Annotated[
        bool, typer.Option("--enforce-eager", help="No captured graphs.", rich_help_panel=ENGINE)
    ] = False,
    seed: Annotated[int, typer.Option(help="For requests that bring none.", rich_help_panel=ENGINE)] = 0,
    load_format: Annotated[str, typer.Option(rich_help_panel=ENGINE)] = "auto",
    model_impl: Annotated[str, typer.Option(rich_help_panel=ENGINE)] = "auto",
    kv_transfer_config: Annotated[
        str | None, typer.Option(metavar="JSON", help="Where hidden states go.", rich_help_panel=ENGINE)
    ] = None,
) -> None:
    """Serve a model by OpenAI's API. Exit code: 0 told to end, 1 could not run, 2 wrong options."""
    shortcuts = {"spec_method": spec_method, "spec_model": spec_model, "spec_tokens": spec_tokens}
    engine: dict[str, Any] = {
        "speculative_config": surfaces.gather(speculative_config, shortcuts, os.environ),
        "tokenizer": tokenizer,
        "dtype": dtype,
        "device": device,
        "max_model_len": max_model_len,
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": max_num_batched_tokens,
        "block_size": block_size,
        "seed": seed,
        "long_prefill_token_threshold": long_prefill_token_threshold,
        "enforce_eager": enforce_eager,
        "num_gpu_blocks_override": num_gpu_blocks_override,
        "kv_cache_memory_bytes": kv_cache_memory_bytes,
        "gpu_memory_utilization": gpu_memory_utilization,
        "enable_prefix_caching": enable_prefix_caching,
        "enable_chunked_prefill": enable_chunked_prefill,
        "load_format": load_format,
        "model_impl": model_impl,
        "kv_transfer_config": _object(kv_transfer_config, "--kv-transfer-config"),
    }
    if not all(key.strip() for key in api_key or ()):
        raise ConfigError("--api-key is empty, which would let everybody in; give a key, or leave the option out.")
    EngineConfig.parse(model=model, **engine)  # a typing error should not wait for torch
    from augury.serve.limits import Limits
    from augury.serve.service import Settings
    from augury.serve.visitors import is_loopback

    keys = [*(api_key or ()), *(key for name in KEYS if (key := os.environ.get(name)))]
    loopback = uds is None and is_loopback(host)
    hosts = [name.lower() for name in allowed_host or ()]
    limits = Limits(
        keys,
        max_concurrent_requests,
        max_request_bytes,
        read_timeout,
        loopback,
        hosts,
        write_timeout,
        share_between_keys,
    )
    settings = Settings(
        model,
        engine,
        list(served_model_name or [model]),
        host,
        port,
        uds,
        limits,
        per_request_spec_decode_metrics,
        not disable_log_stats,
        log_stats_interval,
        enable_access_log,
        shutdown_timeout,
        generation_config,
    )
    raise typer.Exit(_run(settings))


def _object(text: str | None, flag: str) -> dict[str, Any] | None:
    if text is None:
        return None
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{flag} is not JSON ({error}).") from None
    if not isinstance(found, dict):
        raise ConfigError(f"{flag} must be a JSON object, got {type(found).__name__}.")
    return found


def _run(settings: Any) -> int:
    from augury.serve.server import ServeError, Server

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
