"""Large answers as JSON, written beside the event loop and piece by piece: one call of `json.dumps` for all of it would
keep the interpreter for as long as it runs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from fastapi.responses import JSONResponse, Response

LARGE = 1 << 12  # tokens and log-probabilities of an answer
PIECE = 128  # items of a list that are written at once
_dumps = partial(json.dumps, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


async def respond(build: Callable[[], dict[str, Any]], size: int) -> Response:
    """The response of an answer that `build` puts together; `size` is how much there is of it."""
    if size <= LARGE:
        return JSONResponse(build())
    body = await asyncio.to_thread(lambda: "".join(pieces(build())).encode())
    return Response(body, media_type="application/json")


def pieces(value: Any) -> Iterator[str]:
    """The JSON text of a value in pieces of bounded work, equal to `_dumps` when joined."""
    if isinstance(value, dict) and value:
        for place, (key, one) in enumerate(value.items()):
            yield f"{',' if place else '{'}{_dumps(str(key))}:"
            yield from pieces(one)
        yield "}"
    elif isinstance(value, list) and any(isinstance(one, (dict, list)) for one in value[:1]) and len(value) <= PIECE:
        for place, one in enumerate(value):
            yield "," if place else "["
            yield from pieces(one)
        yield "]"
    elif isinstance(value, list) and len(value) > PIECE:
        for start in range(0, len(value), PIECE):
            yield ("," if start else "[") + _dumps(value[start : start + PIECE])[1:-1]
        yield "]"
    else:
        yield _dumps(value)
