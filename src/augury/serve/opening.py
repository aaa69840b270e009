"""The server's parts, started together and ended together: engine, tokenizer, figures."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any

from augury.model.store import resolve
from augury.model.tokenizer import Tokenizer
from augury.serve.defaults import Defaults
from augury.serve.engine_client import EngineClient
from augury.serve.lengths import longest_token
from augury.serve.observatory import Observatory
from augury.serve.parsers.choose import settled
from augury.serve.prompts import Prompts
from augury.serve.service import Service, Settings
from augury.serve.telemetry import Telemetry

logger = logging.getLogger("augury")


def load_tokenizer(directory: Path) -> Tokenizer:
    """The model's tokenizer; transformers would import torch to no purpose, so torch is hidden from it."""
    missing: Any = None
    if sys.modules.setdefault("torch", missing) is None:
        os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")  # and does not complain
    tokenizer = Tokenizer(directory)
    longest_token(tokenizer.inner)  # takes as long again, and the first request would wait for it
    return tokenizer


@asynccontextmanager
async def opened(settings: Settings, give_up: Callable[[str], None]) -> AsyncIterator[Service]:
    """Yield the started service once the engine is ready; raises EngineFailed. `give_up` is called if it is lost."""
    defaults = Defaults.read(settings.generation_config, resolve(settings.model))
    directory = resolve(settings.engine.get("tokenizer") or settings.model)
    loading = asyncio.create_task(asyncio.to_thread(load_tokenizer, directory))
    endpoint = settings.otlp_traces_endpoint
    observatory = Observatory(Telemetry(endpoint, version_of("augury")) if endpoint else None)
    asked = {"directory": settings.collect, "tokens": settings.collect_tokens} if settings.collect else None
    keys, loras = settings.limits.num_keys, settings.lora_modules
    client = EngineClient(settings.model, settings.engine, observatory, give_up, keys, asked, loras)
    client.start_message["whole_drafts"] = settings.swap_from is not None
    if sys.stderr.isatty():
        logger.info("loading %s; Ctrl-C ends it", settings.model)
    try:
        await client.start()
        observatory.open(settings.names[0], client.facts)
        prompts = Prompts(await loading, client.facts["max_model_len"])
        template = str(prompts.tokenizer.inner.chat_template or "")
        parsers = settled(settings.parsers, settings.tool_choice, template)
        now = int(time.time())
        yield Service(settings, client, prompts, observatory, now, defaults, parsers, dict(loras))
    finally:
        await client.stop()
        await asyncio.gather(loading, return_exceptions=True)  # the first error is enough
