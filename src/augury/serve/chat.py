"""/v1/chat/completions: request to engine to response."""

from __future__ import annotations

import asyncio
import logging
from functools import cache
from typing import Any, ClassVar

from augury.serve.answers import Answer, Answers
from augury.serve.costs import check_lists
from augury.serve.engine_client import EngineClient
from augury.serve.errors import ApiError
from augury.serve.openai import ChatRequest
from augury.serve.parsers.choose import Parsers, thinks
from augury.serve.prompts import Prompts
from augury.serve.scores import Entry, chat_logprobs
from augury.serve.speech import Delta, Speech, deltas, long_id, message, short_id
from augury.serve.tooling import ToolUse
from augury.serve.wire import Message

logger = logging.getLogger("augury")
PROMPT_END = 32  # tokens at the end of a prompt in which its template may open or close reasoning


class ChatShape:
    """Choices as messages; with a parser, their text is split into content, reasoning and calls."""

    object, chunk_object = "chat.completion", "chat.completion.chunk"
    empty: ClassVar[dict[str, Any]] = {"delta": {}, "logprobs": None}

    def __init__(self, request: ChatRequest, use: ToolUse, begins: bool | None = True, short_ids: bool = False) -> None:
        self.request, self._use, self._begins = request, use, begins  # reasoning
        self._make_id = short_id if short_ids else long_id
        self._speech: dict[int, Speech] = {}  # by choice
        self._latest: dict[int, Delta] = {}  # what the next chunk of each says

    def choice(self, index: int, answer: Answer) -> dict[str, Any]:
        """A finished choice."""
        said: dict[str, Any] = {"role": "assistant", "content": answer.text}
        if (speech := self.speech(index)) is not None:
            said = message(speech.take(answer.text, True), self._make_id)
            answer.end = self._ended(speech, answer.end)
        return {"index": index, "message": said, "logprobs": self._logprobs(answer.logprobs)}

    def opening(self, index: int) -> dict[str, Any] | None:
        """The first delta, with the role."""
        return {"delta": {"role": "assistant", "content": ""}, "logprobs": None}

    def ahead(self, index: int, update: Message) -> list[dict[str, Any]]:
        """All but the last delta of a step, each for a chunk of its own: a call's name, say, and then arguments."""
        if (speech := self.speech(index)) is None:
            return []
        said = deltas(speech.take(update["text"], "end" in update), self._make_id)
        if "end" in update:
            update["end"] = self._ended(speech, update["end"])
        self._latest[index] = said[-1] if said else {}
        return [{"delta": delta, "logprobs": None} for delta in said[:-1]]

    def delta(self, index: int, answer: Answer, update: Message) -> dict[str, Any] | None:
        """The last delta of a step; None if there is nothing to send."""
        scored = update.get("logprobs", [])
        if self._use.parse is not None:
            said = self._latest.pop(index, {})
            quiet = not said
        else:
            quiet = not update["text"]
            said = {} if quiet and "end" in update else {"content": update["text"]}
        if quiet and not scored and "end" not in update:
            return None
        return {"delta": said, "logprobs": self._logprobs(scored)}

    def speech(self, index: int) -> Speech | None:
        """The reader of a choice's text; None if all of it is content."""
        if self._use.parse is None:
            return None
        if index not in self._speech:
            reasons = self.request.include_reasoning is not False
            self._speech[index] = Speech(self._use.parse(self._begins), self._use.most_calls, reasons)
        return self._speech[index]

    def _ended(self, speech: Speech, end: dict[str, Any]) -> dict[str, Any]:
        return {**end, "reason": self._use.ends_with} if speech.calls and end["reason"] == "stop" else end

    def _logprobs(self, entries: list[Entry]) -> dict[str, Any] | None:
        return chat_logprobs(entries, self.request.top_logprobs or 0) if self.request.logprobs else None


async def chat(
    request: ChatRequest,
    prompts: Prompts,
    client: EngineClient,
    model: str,
    metrics: str,
    parsers: Parsers,
    kind: type[Answers] = Answers,
) -> Answers:
    """Check a request, tokenize its conversation and prepare its answers."""
    request.check()
    check_lists(request.logit_bias, request.allowed_token_ids, client.facts["vocab_size"])
    use = ToolUse.read(request.tools, request.tool_choice, request.parallel_tool_calls, parsers)
    params = await asyncio.to_thread(_parameters, request, use) if request.heavy else _parameters(request, use)
    options = {
        "continue_final_message": bool(request.continue_final_message),
        "add_generation_prompt": request.add_generation_prompt is not False and not request.continue_final_message,
    }
    if use.shown and "tools" not in str(prompts.tokenizer.inner.chat_template):
        _say_that_tools_are_dropped()
    tokens = await prompts.chat(request.messages, use.shown, options, request.template_options)
    if request.prediction is not None:
        params = await prompts.expected(request.prediction.text, params)
    end = await prompts.decode(tokens[-PROMPT_END:]) if parsers.family is not None else ""
    begins: bool | None = thinks(parsers.family, request.template_options, end) or None
    if begins and request.structure() is not None:
        begins = False  # the structure holds from the first token on: it has room for reasoning, or there is none
    shape = ChatShape(request, use, begins, parsers.short_ids)
    return kind(request, client, [tokens], params, shape, "chatcmpl", model, metrics)


def _parameters(request: ChatRequest, use: ToolUse) -> dict[str, Any]:
    # Neither given: an answer may be as long as the context allows.
    most = request.max_tokens if request.max_completion_tokens is None else request.max_completion_tokens
    special: dict[str, Any] = {}
    if use.structure is not None:
        if request.structure() is not None:
            why = "tool_choice forces a call, and another field a structure; keep one."
            raise ApiError(400, why, "tool_choice")
        special["structured_outputs"] = use.structure
    elif use.parse is not None and request.skip_special_tokens is None:
        special["skip_special_tokens"] = False  # the markers of calls may be special tokens
    scores = (request.top_logprobs or 0) if request.logprobs else None
    return request.parameters(max_tokens=most, logprobs=scores, **special)


@cache  # once is enough
def _say_that_tools_are_dropped() -> None:
    logger.warning("a request has tools, but this model's chat template does not write them: the model never sees any.")
