"""Parses JSON bodies into requests: long ones off the event loop, and every body is freed once it is parsed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel

from augury.observe.collection import uncollected
from augury.serve.errors import ApiError
from augury.serve.scope import BODY

Result = TypeVar("Result")
LONG = 1 << 17  # bytes; shorter ones are parsed sooner than handed to a thread
MARKS, MOST_MARKS = (b",", b"[", b"{"), 1 << 20  # an upper bound of the values; a parser cannot be interrupted
DEEPEST = 256  # levels; the interpreter's own limit depends on how deep its stack is, and the engine's is another
MOST_COLONS = 1 << 18  # an upper bound of the fields: each new name costs ten times what a number does
_reader = ThreadPoolExecutor(1, "read")  # one at a time: a parser holds the GIL as long as it runs


def nested(value: Any, levels: int) -> bool:
    """Whether lists and objects are nested more than `levels` deep."""
    level = [value]
    for _ in range(levels):
        inner = (one.values() if isinstance(one, dict) else one for one in level)
        level = [part for parts in inner for part in parts if isinstance(part, (dict, list))]
        if not level:
            return False
    return True


def parsed(body: bytes) -> Any:
    """The value of a JSON text; raises ApiError if it holds too much, the parser's error if it is not JSON."""
    if (marks := sum(map(body.count, MARKS))) > MOST_MARKS:
        why = f"the body has {marks} commas and opening brackets; at most {MOST_MARKS}. Send fewer at a time."
        raise ApiError(413, why)
    if (colons := body.count(b":")) > MOST_COLONS:
        raise ApiError(413, f"the body has {colons} colons; at most {MOST_COLONS}. Send fewer at a time.")
    with uncollected():
        value = json.loads(body)
    if sum(map(body.count, (b"[", b"{"))) > DEEPEST and nested(value, DEEPEST):
        raise ApiError(400, f"the body is nested too deeply: more than {DEEPEST} levels.")
    return value


async def beside(size: int, work: Callable[[], Result]) -> Result:
    """Do work on `size` bytes of JSON: in the one thread for it if they are many, else right here."""
    if size > LONG:
        return await asyncio.get_running_loop().run_in_executor(_reader, work)
    return work()


class _Parsing(Request):
    """A request whose JSON is already the model that its route wants, which FastAPI then takes as it is."""

    model: type[BaseModel]

    async def json(self) -> Any:
        """The model; what is wrong with it is raised as pydantic's ValidationError, or as the parser's error."""
        return await beside(len(await self.body()), self._parsed)

    def _parsed(self) -> BaseModel:
        value = parsed(self._body)
        self._body = b"{}"  # it may be megabytes, and the answer may take minutes
        if (held := self.scope.get(BODY)) is not None:
            held.release()
        return self.model.model_validate(value)


class BodyRoute(APIRoute):
    """A route with a JSON body."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """FastAPI's handler, wrapped to be given a request that parses its own body."""
        inner, field = super().get_route_handler(), self.body_field
        if field is None:
            return inner
        model = field.field_info.annotation

        async def handler(request: Request) -> Response:
            parsing = _Parsing(request.scope, request.receive)
            parsing.model = model  # type: ignore[assignment]
            return await inner(parsing)

        return handler
