"""/v1/chat/completions: request to engine to response."""

from __future__ import annotations

import asyncio
import logging
from functools import cache
from typing import Any, ClassVar

from augury.serve.answers import Answer, Answers
from augury.serve.costs import check_lists
from augury.serve.engine_client import EngineClient
from augury.serve.openai import ChatRequest
from augury.serve.prompts import Prompts
from augury.serve.scores import Entry, chat_logprobs
from augury.serve.wire import Message

logger = logging.getLogger("augury")


class ChatShape:
    """A choice is a message."""

    object, chunk_object = "chat.completion", "chat.completion.chunk"
    empty: ClassVar[dict[str, Any]] = {"delta": {}, "logprobs": None}

    def __init__(self, request: ChatRequest) -> None:
        self.request = request

    def choice(self, index: int, answer: Answer) -> dict[str, Any]:
        """A finished choice."""
        message = {"role": "assistant", "content": answer.text}
        return {"index": index, "message": message, "logprobs": self._logprobs(answer.logprobs)}

    def opening(self, index: int) -> dict[str, Any] | None:
        """Who speaks."""
        return {"delta": {"role": "assistant", "content": ""}, "logprobs": None}

    def delta(self, index: int, answer: Answer, update: Message) -> dict[str, Any] | None:
        """What a step added."""
        scored = update.get("logprobs", [])
        if not update["text"] and not scored and "end" not in update:
            return None
        said = {"content": update["text"]} if update["text"] or "end" not in update else {}
        return {"delta": said, "logprobs": self._logprobs(scored)}

    def _logprobs(self, entries: list[Entry]) -> dict[str, Any] | None:
        return chat_logprobs(entries, self.request.top_logprobs or 0) if self.request.logprobs else None


async def chat(request: ChatRequest, prompts: Prompts, client: EngineClient, model: str, metrics: str) -> Answers:
    """Read a request and make its answers ready to begin."""
    request.check()
    check_lists(request.logit_bias, request.allowed_token_ids, client.facts["vocab_size"])
    params = await asyncio.to_thread(_parameters, request) if request.heavy else _parameters(request)
    options = {
        "continue_final_message": bool(request.continue_final_message),
        "add_generation_prompt": request.add_generation_prompt is not False and not request.continue_final_message,
    }
    tools = request.tools if request.tool_choice != "none" else None
    if tools and "tools" not in str(prompts.tokenizer.inner.chat_template):
        _say_that_tools_are_dropped()
    tokens = await prompts.chat(request.messages, tools, options, request.chat_template_kwargs)
    return Answers(request, client, [tokens], params, ChatShape(request), "chatcmpl", model, metrics)


def _parameters(request: ChatRequest) -> dict[str, Any]:
    # Neither given: an answer may be as long as the context allows.
    most = request.max_tokens if request.max_completion_tokens is None else request.max_completion_tokens
    return request.parameters(max_tokens=most, logprobs=(request.top_logprobs or 0) if request.logprobs else None)


@cache  # once is enough
def _say_that_tools_are_dropped() -> None:
    logger.warning("a request has tools, but this model's chat template does not write them: the model never sees any.")
