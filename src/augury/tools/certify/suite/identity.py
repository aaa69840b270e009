"""The identity of a server: its name, release, model and method, as far as it reports them."""

from __future__ import annotations

from typing import Any

from augury.tools.certify.suite.cells import Subject
from augury.tools.shared.endpoint import Endpoint
from augury.tools.shared.http import brief

OWNERS = {"augury": "Augury", "vllm": "vLLM", "sglang": "SGLang", "llamacpp": "llama.cpp"}  # in /v1/models
UNKNOWN = "unknown"


def identify(at: Endpoint, method: str | None = None, release: str | None = None, name: str | None = None) -> Subject:
    """The subject of a run; what the operator states takes precedence over what the server reports."""
    owner = at.models(at.timeout).get(at.model, "").lower()
    server, told = OWNERS.get(owner, ""), _text(at.json("/version"), "version")
    if server == "SGLang":
        told = _text(at.json("/get_server_info"), "version") or told
    elif server == "llama.cpp":
        told = _text(at.json("/props"), "build_info")
    elif not server:
        server, told = _by_description(at, told)
    method = method or _method(at, server)
    model = at.model.replace("\\", "/").rpartition("/")[2] if at.model.startswith(("/", "~", ".")) else at.model
    return Subject(name or server, release or told or UNKNOWN, brief(model), method)


def _by_description(at: Endpoint, told: str) -> tuple[str, str]:
    """Name and release from /openapi.json, for a server that does not name itself in its list of models."""
    info = at.json("/openapi.json")
    info = info.get("info") if isinstance(info, dict) else None
    title, release = _text(info, "title"), _text(info, "version")
    if "llama.cpp" in title:
        return "llama-cpp-python", release
    return title or UNKNOWN, told or release


def _method(at: Endpoint, server: str) -> str:
    """The server's method; only Augury and SGLang report it, and vLLM counts drafts only while it speculates."""
    live = at.live() if server == "Augury" else None
    if live is not None:
        return str(live.get("method") or "none")
    if server == "SGLang":
        info = at.json("/get_server_info")
        return (_text(info, "speculative_algorithm") or "none").lower() if isinstance(info, dict) else UNKNOWN
    return "none" if server == "vLLM" and at.drafts() is None else UNKNOWN


def _text(told: Any, key: str) -> str:
    found = told.get(key) if isinstance(told, dict) else None
    return brief(found)[:60] if isinstance(found, str) else ""
