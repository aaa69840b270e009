"""LoRA adapters of a server: which there are, and `/v1/load_lora_adapter`, as vLLM has it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI
from fastapi.responses import PlainTextResponse
from pydantic import AfterValidator, BaseModel, Field

from augury.serve.errors import ApiError
from augury.serve.service import Service
from augury.serve.swapping import allowed


def _printable(name: str) -> str:
    """A name that a log and a terminal can show."""
    if not name.isprintable():
        raise ValueError("it may hold printable characters only")
    return name


class LoadRequest(BaseModel):
    """Which adapter to load, under which name."""

    lora_name: Annotated[str, AfterValidator(_printable)] = Field(min_length=1, max_length=200)
    lora_path: str = Field(min_length=1, max_length=4000)
    load_inplace: bool = False


class UnloadRequest(BaseModel):
    """Which adapter to forget."""

    lora_name: str = Field(min_length=1, max_length=200)
    lora_int_id: int | None = None


def mount_adapters(app: FastAPI, service: Service, errors: dict[int | str, dict[str, Any]]) -> None:
    """Add the routes, if LoRA is enabled."""
    if not service.settings.engine.get("enable_lora"):
        return
    turn = asyncio.Lock()  # what was loaded at the check must still be loaded when the engine answers

    @app.post("/v1/load_lora_adapter", responses=errors, response_class=PlainTextResponse)
    async def load_adapter(body: LoadRequest) -> PlainTextResponse:
        """Load an adapter; running requests continue."""
        async with turn:
            await _load(service, body)
        return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' added successfully.")

    @app.post("/v1/unload_lora_adapter", responses=errors, response_class=PlainTextResponse)
    async def unload_adapter(body: UnloadRequest) -> PlainTextResponse:
        """Forget an adapter; requests that have it finish with it."""
        if service.settings.lora_from is None:
            raise _closed()
        async with turn:
            if body.lora_name not in service.adapters:
                raise ApiError(404, f"lora_name: {body.lora_name[:100]!r} is not loaded.", "lora_name")
            await service.client.order({"type": "lora", "name": body.lora_name, "path": None})
            _remember(service, {name: path for name, path in service.adapters.items() if name != body.lora_name})
        return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' removed successfully.")


async def _load(service: Service, body: LoadRequest) -> None:
    path = str(_place(body.lora_path, service.settings.lora_from))
    if body.lora_name in service.settings.names:
        raise ApiError(400, f"lora_name: {body.lora_name[:100]!r} is the base model's name.", "lora_name")
    if body.lora_name in service.adapters and not body.load_inplace:
        why = f"lora_name: {body.lora_name[:100]!r} is loaded; unload it first, or set load_inplace."
        raise ApiError(400, why, "lora_name")
    try:
        await service.client.order({"type": "lora", "name": body.lora_name, "path": path})
    except ApiError as error:
        said = error.message.replace(path, body.lora_path)  # clients need not know where it lies on this machine
        raise ApiError(error.status, said, error.param, error.code) from None
    _remember(service, {**service.adapters, body.lora_name: path})


def _remember(service: Service, adapters: dict[str, str]) -> None:
    """Record the adapters that are loaded now, also for a restart of the engine."""
    service.adapters = adapters
    service.client.start_message["loras"] = adapters


def shown_path(service: Service, name: str) -> str:
    """Where a model comes from, for clients: an adapter loaded at run time is shown relative to --lora-from."""
    settings = service.settings
    path = service.adapters.get(name, settings.model)
    if name in service.adapters and settings.lora_modules.get(name) != path and settings.lora_from is not None:
        return str(Path(path).relative_to(Path(settings.lora_from).resolve()))
    return path


def _closed() -> ApiError:
    return ApiError(403, "adapters are loaded at run time only where the server was started with --lora-from DIR.")


def _place(path: str, root: str | None) -> Path:
    """The adapter's directory; refused unless it lies under the one that the operator names."""
    if root is None:
        raise _closed()
    try:
        return allowed(path, Path(root))
    except ApiError:
        why = "lora_path: no directory of that name under the one of --lora-from."
        raise ApiError(400, why, "lora_path") from None
