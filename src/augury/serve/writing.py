"""Writes large answers as JSON off the event loop and piece by piece: one call of `json.dumps` for all of it would hold
the GIL for as long as it runs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from fastapi.responses import JSONResponse, Response

LARGE = 1 << 12  # tokens and log-probabilities of an answer
PIECE = 32  # items of a list that are written at once
Known = dict[tuple[int, ...], tuple[list[Any], str]]  # by the ids of some items of a list: the items, and their JSON
_dumps = partial(json.dumps, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


async def respond(build: Callable[[], dict[str, Any] | bytes], size: int) -> Response:
    """The response with what `build` returns, object or JSON; a large `size` is built and written in a thread."""
    if size > LARGE:
        return Response(await asyncio.to_thread(_written, build), media_type="application/json")
    built = build()
    return Response(built, media_type="application/json") if isinstance(built, bytes) else JSONResponse(built)


def _written(build: Callable[[], dict[str, Any] | bytes]) -> bytes:
    built = build()
    return built if isinstance(built, bytes) else "".join(pieces(built)).encode()


def pieces(value: Any, known: Known | None = None, one_by_one: bool = False) -> Iterator[str]:
    """The JSON text of a value in pieces of bounded work, equal to `_dumps` when joined.

    A list of choices is written one by one, since each may be long; any other long list in stretches. What lists have
    in common, such as the prompt's scores in each of n answers, is written once; `known` is what earlier values had.
    """
    known = {} if known is None else known
    if isinstance(value, dict) and value:
        for place, (key, one) in enumerate(value.items()):
            yield f"{',' if place else '{'}{_dumps(str(key))}:"
            yield from pieces(one, known, key == "choices")
        yield "}"
    elif isinstance(value, list) and value and (one_by_one or _few(value)):
        for place, one in enumerate(value):
            yield "," if place else "["
            yield from pieces(one, known)
        yield "]"
    elif isinstance(value, list) and len(value) > PIECE:
        for start in range(0, len(value), PIECE):
            yield "," if start else "["
            yield _stretch(value[start : start + PIECE], known)
        yield "]"
    else:
        yield _dumps(value)


def _few(values: list[Any]) -> bool:
    return isinstance(values[0], (dict, list)) and len(values) <= PIECE


def _stretch(items: list[Any], known: Known) -> str:
    """The JSON text of some items of a list, cached by their ids; while the items are kept, an id means one item."""
    name = tuple(map(id, items))
    if name not in known:
        known[name] = items, _dumps(items)[1:-1]
    return known[name][1]
