"""What the log says once the server is ready: what runs, where, how to call it, how to stop it."""

from __future__ import annotations

import json
import os
import shlex
import socket
import time
from typing import Any

from augury.serve.keys import Keys
from augury.serve.service import Service

QUESTION = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 50}


def welcome(service: Service, listening: socket.socket) -> list[str]:
    """The lines, one fact each."""
    settings, facts = service.settings, service.client.facts
    names = ", ".join(settings.names)
    lines = [f"serving {names} on {facts['device']}, context {facts['max_model_len']} tokens; {_method(facts)}"]
    if str(service.defaults):
        lines.append(f"the model's own defaults: {service.defaults} (--generation-config vllm for none)")
    lines += _tenants(Keys(settings.limits.api_keys, settings.limits.share), facts["speculative_config"] or {})
    lines += _files(service)
    url, extra = _address(settings.uds, listening)
    lines.append(f"listening at {settings.uds or url}" + ("" if settings.uds else f", the page is {url}/"))
    key = " -H 'Authorization: Bearer KEY'" if settings.limits.api_keys else ""
    body = shlex.quote(json.dumps(QUESTION))
    lines.append(f"try: curl {extra}{url}/v1/chat/completions{key} -H 'Content-Type: application/json' -d {body}")
    lines.append(f"Ctrl-C stops it; running requests have {settings.shutdown_timeout:g} seconds to finish")
    return lines


def record_of(service: Service, listening: socket.socket) -> dict[str, Any]:
    """What `augury ps` shows of this server."""
    settings = service.settings
    url = None if settings.uds else _address(None, listening)[0]
    known = {"url": url, "uds": settings.uds, "models": list(settings.names), "method": service.client.facts["method"]}
    return {"pid": os.getpid(), "started": time.time(), **known}


def _tenants(keys: Keys, config: dict[str, Any]) -> list[str]:
    """Who shares caches with whom, where there are keys to share between."""
    if not keys.apart:
        return []
    line = "each key has caches of its own (--share-between-keys makes them one)"
    if path := config.get("suffix_decoding_cache_path"):
        line += f"; {path} belongs to no key, so nothing is drafted from it"
    return [line]


def _files(service: Service) -> list[str]:
    """What is written to a disk, and what may be read from it."""
    settings, lines = service.settings, []
    if settings.collect:
        most = f"{settings.collect_tokens:,} tokens"
        lines.append(f"answers are written to {settings.collect}, up to {most}: they hold what your users write")
    if service.adapters:
        lines.append(f"with the adapters {', '.join(service.adapters)}, each a model of its own to clients")
    if settings.lora_from:
        lines.append(f"clients may load adapters under {settings.lora_from} (/v1/load_lora_adapter)")
    if settings.swap_from:
        lines.append(f"clients may swap in drafters under {settings.swap_from} (augury drafter swap)")
    return lines


def _method(facts: dict[str, Any]) -> str:
    if facts["method"] is None:
        return "plain decoding (-sc speculates)"
    truth = "may change the text" if facts["lossy"] else "leaves the text as it is"
    return f"{facts['method']} drafts up to {facts['num_spec_tokens']} tokens, rule {facts['rule']} ({truth})"


def _address(path: str | None, listening: socket.socket) -> tuple[str, str]:
    """The URL to call, and what curl needs besides."""
    if path is not None:
        return "http://localhost", f"--unix-socket {shlex.quote(path)} "
    host, port = listening.getsockname()[:2]
    everywhere = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}  # noqa: S104 (nothing is bound here)
    host = everywhere.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{host}:{port}", ""
