"""The routes of the Responses API."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import Response

from augury.serve.chat import chat
from augury.serve.openai import ChatRequest
from augury.serve.responses.answering import Asked, ResponseAnswers
from augury.serve.responses.echo import check_conversation
from augury.serve.responses.request import ResponsesRequest
from augury.serve.responses.store import Store
from augury.serve.scope import CLIENT
from augury.serve.service import Service
from augury.serve.stream import answer, while_connected

Statuses = dict[int | str, dict[str, Any]]


def mount_responses(app: FastAPI, service: Service, streamed: Statuses, errors: Statuses) -> None:
    """Add the routes; responses are kept as long as the server runs, at most."""
    store = Store(service.settings.limits.num_keys)

    @app.post("/v1/responses", responses=streamed, response_model=dict[str, Any])
    async def create_response(body: ResponsesRequest, request: Request) -> Response:
        """Answer a conversation, as OpenAI's Responses API does."""
        service.receive(body, request)
        return await answer(await while_connected(request.receive, _read(body, service, store)), request, done=b"")

    @app.get("/v1/responses/{name}", responses=errors, response_model=dict[str, Any])
    async def get_response(name: str, request: Request) -> Response:
        """A response that is kept."""
        return Response(store.get(request.scope[CLIENT], name).response, media_type="application/json")

    @app.delete("/v1/responses/{name}", responses=errors)
    async def delete_response(name: str, request: Request) -> dict[str, Any]:
        """Forget a response."""
        store.forget(request.scope[CLIENT], name)
        return {"id": name, "object": "response", "deleted": True}


async def _read(body: ResponsesRequest, service: Service, store: Store) -> ResponseAnswers:
    request, asked = await asyncio.to_thread(_prepared, body, store)  # which may take a while for a long conversation
    made = await chat(
        request,
        service.prompts,
        service.client,
        service.named(body.model),
        service.settings.metrics,
        service.parsers,
        ResponseAnswers,
    )
    assert isinstance(made, ResponseAnswers)
    tokenizer = service.prompts.tokenizer
    keep = partial(store.keep, body.client)
    made.attend(asked, keep, lambda text: len(tokenizer.encode(text, special=False)))
    return made


def _prepared(body: ResponsesRequest, store: Store) -> tuple[ChatRequest, Asked]:
    size = body.check()
    body.check_common()
    earlier = body.previous_response_id
    before = json.loads(store.get(body.client, earlier, "previous_response_id").items) if earlier is not None else []
    if before:
        size += check_conversation([*before, *body.items()])  # it may have grown turn by turn
    return body.chat(before), Asked(body, before, size)
