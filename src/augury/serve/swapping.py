"""`/augury/drafter`: which drafter drafts, another one in its place, and back. Only there with --swap-from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel

from augury.serve.errors import ApiError
from augury.serve.service import Service


class SwapRequest(BaseModel):
    """Which drafter to load."""

    directory: str


def mount_swaps(app: FastAPI, service: Service) -> None:
    """Add the routes, if the operator allows swaps."""
    root = service.settings.swap_from
    if root is None:
        return

    def loaded() -> dict[str, Any]:
        facts = service.client.facts
        return {"method": facts["method"], "drafter": (facts["speculative_config"] or {}).get("model")}

    @app.get("/augury/drafter")
    async def drafter() -> dict[str, Any]:
        """The drafter that drafts now."""
        return loaded()

    @app.post("/augury/drafter")
    async def swap(body: SwapRequest) -> dict[str, Any]:
        """Load a drafter of the same kind and sizes; running requests go on."""
        await service.client.swap(str(allowed(body.directory, Path(root))))
        return loaded()

    @app.post("/augury/drafter/undo")
    async def take_back() -> dict[str, Any]:
        """Give back the drafter from before the last swap."""
        await service.client.swap(None)
        return loaded()


def allowed(directory: str, root: Path) -> Path:
    """The directory, where it lies under the one that the operator names; links do not lead out of it."""
    try:
        found, top = Path(root, directory).resolve(), root.resolve()
        inside = found.is_relative_to(top) and found.is_dir()
    except (OSError, ValueError):  # a name too long, or one with a zero byte
        inside = False
    if not inside:
        raise ApiError(400, f"directory: no directory of that name under {root} (--swap-from).", "directory")
    return found
