"""`/augury/drafter`: shows the drafter, swaps in another and takes the swap back. Only there with --swap-from."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel

from augury.config.errors import ConfigError
from augury.config.facts import read_facts
from augury.methods.spec import whole
from augury.serve.errors import ApiError
from augury.serve.service import Service

logger = logging.getLogger("augury")

WORDS = ("draft_vocab_size", "truncated_vocab_size")  # what a config.json calls a drafter's vocabulary size


class SwapRequest(BaseModel):
    """Which drafter to load."""

    directory: str


def mount_swaps(app: FastAPI, service: Service) -> None:
    """Add the routes, if the operator allows swaps."""
    root = service.settings.swap_from
    if root is None:
        return

    def model() -> str | None:
        return (service.client.facts["speculative_config"] or {}).get("model")

    def loaded() -> dict[str, Any]:
        drafter = model()
        return {"method": service.client.facts["method"], "drafter": drafter and told(drafter, Path(root))}

    async def put(wanted: Path | None, words: str) -> dict[str, Any]:
        before = loaded()["drafter"]
        try:
            await service.client.swap(None if wanted is None else str(wanted))
        except ApiError as error:
            logger.warning("%s %s: refused, %s keeps drafting: %s", words, wanted or "", before, error.message)
            raise
        logger.info("%s: %s now drafts instead of %s.", words, loaded()["drafter"], before)
        return loaded()

    @app.get("/augury/drafter")
    async def drafter() -> dict[str, Any]:
        """The drafter in use."""
        return loaded()

    @app.post("/augury/drafter")
    async def swap(body: SwapRequest) -> dict[str, Any]:
        """Load a drafter of the same kind and sizes; running requests continue."""
        wanted = allowed(body.directory, Path(root))
        if says := other_words(str(model()), wanted):
            raise ApiError(400, f"directory: {says}", "directory")
        return await put(wanted, "drafter swap")

    @app.post("/augury/drafter/undo")
    async def take_back() -> dict[str, Any]:
        """Restore the drafter from before the last swap."""
        return await put(None, "drafter rollback")


def told(model: str, root: Path) -> str:
    """A drafter's name for clients: they need not know where on this machine its directory lies."""
    found, top = Path(model).resolve(), root.resolve()
    return str(found.relative_to(top)) if found.is_relative_to(top) else model


def other_words(mine: str, wanted: Path) -> str:
    """The error if a drafter of the same class has another vocabulary size, as trimmed ones have; else ""."""
    try:
        have, found = read_facts(mine), read_facts(str(wanted))
    except ConfigError:
        return ""  # the engine reads it again, and says what is wrong with it
    if have is None or found is None or have.raw.get("architectures") != found.raw.get("architectures"):
        return ""  # the engine says what else differs
    words, others = ([facts.raw.get(name) for name in WORDS] for facts in (have, found))
    if words == others or any(count is not None and whole(count) is None for count in (*words, *others)):
        return ""
    counts = [
        next((f"a vocabulary of {count:,} tokens" for count in some if count), "the whole vocabulary")
        for some in (others, words)
    ]
    return (
        f"{wanted.name} has {counts[0]}, the loaded drafter {counts[1]}; only a drafter with the same vocabulary size "
        "can replace it. Train or trim it to that size (--vocabulary, or --words of `drafter trim`), or restart the "
        "server with it."
    )


def allowed(directory: str, root: Path) -> Path:
    """The directory; refused unless it lies under the one that the operator names, also after following links."""
    try:
        found, top = Path(root, directory).resolve(), root.resolve()
        inside = found.is_relative_to(top) and found.is_dir()
    except (OSError, ValueError):  # a name too long, or one with a zero byte
        inside = False
    if not inside:
        raise ApiError(400, f"directory: no directory of that name under {root} (--swap-from).", "directory")
    return found
