"""The routes of the Messages API."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import Response

from augury.serve.chat import chat
from augury.serve.messages.answering import MessageAnswers
from augury.serve.messages.request import MessagesRequest
from augury.serve.service import Service
from augury.serve.stream import answer, while_connected
from augury.serve.tooling import ToolUse

Statuses = dict[int | str, dict[str, Any]]


class CountRequest(MessagesRequest):
    """POST /v1/messages/count_tokens: the same, and max_tokens may be left out."""

    max_tokens: int = 1


def mount_messages(app: FastAPI, service: Service, streamed: Statuses, errors: Statuses) -> None:
    """Add the routes."""

    @app.post("/v1/messages", responses=streamed, response_model=dict[str, Any])
    async def create_message(body: MessagesRequest, request: Request) -> Response:
        """Answer a conversation, as Anthropic's Messages API does."""
        service.receive(body, request)
        return await answer(await while_connected(request.receive, _read(body, service)), request, done=b"")

    @app.post("/v1/messages/count_tokens", responses=errors)
    async def count_tokens(body: CountRequest) -> dict[str, int]:
        """How many tokens a conversation has for the model."""
        service.check_model(body.model)
        asked = body.chat()
        use = ToolUse.read(asked.tools, asked.tool_choice, asked.parallel_tool_calls, service.parsers)
        prefilled = bool(asked.continue_final_message)
        options = {"continue_final_message": prefilled, "add_generation_prompt": not prefilled}
        given = (asked.messages, use.shown, options, asked.chat_template_kwargs)
        return {"input_tokens": len(await service.prompts.chat(*given, to_run=False))}


async def _read(body: MessagesRequest, service: Service) -> MessageAnswers:
    asked = body.chat()
    made = await chat(
        asked,
        service.prompts,
        service.client,
        service.named(body.model),
        service.settings.metrics,
        service.parsers,
        MessageAnswers,
    )
    assert isinstance(made, MessageAnswers)
    made.attend()
    return made
