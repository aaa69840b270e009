"""Tokenizes texts and conversations in threads of their own: a long prompt never holds up a stream."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from augury.config.prediction import KEY as PREDICTION
from augury.model.errors import ModelError
from augury.model.tokenizer import Tokenizer
from augury.serve.errors import ApiError
from augury.serve.lengths import Lengths, in_bytes
from augury.serve.media import refusal
from augury.serve.openai import ChatMessage
from augury.serve.plain_text import Guard, strings_in

Result = TypeVar("Result")
SHORT = 1 << 15  # bytes; longer texts have threads of their own, so that short ones never wait for them
WAITING = 4  # texts of the largest size that may wait at /tokenize
RESERVED = {
    "conversation",
    "tools",
    "documents",
    "chat_template",
    "add_generation_prompt",
    "continue_final_message",
    "tokenize",
    "padding",
    "truncation",
    "max_length",
    "return_tensors",
    "return_dict",
    "return_assistant_tokens_mask",
    "tokenizer_kwargs",
    "messages",
}


class Prompts:
    """The server's tokenizer; texts with more tokens than the context are refused, if possible before tokenization."""

    def __init__(self, tokenizer: Tokenizer, context: int) -> None:
        self.tokenizer = tokenizer
        self.lengths = Lengths(tokenizer.inner, context)
        self._guard = Guard(tokenizer.inner)
        # tokenizers releases the GIL while it works, but what it has begun cannot be stopped.
        self._quick, self._slow = ThreadPoolExecutor(2, "tokenize"), ThreadPoolExecutor(2, "tokenize-long")
        self._curious = ThreadPoolExecutor(1, "tokenize-only")  # long texts that are only tokenized delay each other
        self._asked = 0  # bytes that wait there
        self._most_asked = WAITING * self.lengths.tokenized

    async def _away(self, size: int, to_run: bool, work: Callable[..., Result], *arguments: Any) -> Result:
        lane = self._quick if size <= SHORT else self._slow if to_run else self._curious
        if lane is not self._curious:
            return await asyncio.get_running_loop().run_in_executor(lane, work, *arguments)
        if self._asked + size > self._most_asked:
            raise ApiError(
                429, f"{self._asked} bytes are waiting to be tokenized or detokenized; the limit is {self._most_asked}."
            )
        self._asked += size
        task = asyncio.get_running_loop().run_in_executor(lane, work, *arguments)
        task.add_done_callback(lambda _: self._done(size))  # not when its client leaves: it cannot be stopped
        return await task

    def _done(self, size: int) -> None:
        self._asked -= size

    async def encode(self, text: str, special: bool, to_run: bool = True) -> list[int]:
        """Token ids of a text; control tokens spelled in it count as such, since its author wrote all of it."""
        if to_run:
            self.lengths.check_text(text, "prompt")
        else:
            self.lengths.check_tokenized(in_bytes([text]), "prompt")
        try:
            return await self._away(len(text), to_run, self.tokenizer.encode, text, special)
        except ModelError as error:
            raise ApiError(400, str(error), "prompt") from None

    async def expected(self, text: str, params: dict[str, Any]) -> dict[str, Any]:
        """Sampling parameters with the token ids of an expected text, which may be as long as the context."""
        self.lengths.check_expected(in_bytes([text]))
        try:
            ids = await self._away(len(text), True, self.tokenizer.encode, text, False)
        except ModelError as error:
            raise ApiError(400, f"{PREDICTION}: {error}", PREDICTION) from None
        return {**params, "extra_args": {**params.get("extra_args", {}), PREDICTION: ids}}

    async def decode(self, tokens: list[int], to_run: bool = True) -> str:
        """The text of token ids."""
        return await self._away(len(tokens), to_run, self.tokenizer.decoder(False), tokens)

    async def pieces(self, tokens: list[int]) -> list[str]:
        """The vocabulary's own spelling of each token."""
        return await self._away(len(tokens), False, self.tokenizer.inner.convert_ids_to_tokens, tokens)

    async def chat(
        self,
        messages: list[ChatMessage],
        tools: list[dict[str, Any]] | None,
        options: dict[str, Any],
        template_options: dict[str, Any] | None,
        to_run: bool = True,
    ) -> list[int]:
        """Token ids of a conversation, by the model's chat template."""
        if wrong := sorted(RESERVED & set(template_options or {})):
            raise ApiError(400, f"chat_template_kwargs.{wrong[0]} is not for the template.", "chat_template_kwargs")
        conversation = [_for_template(message, i) for i, message in enumerate(messages)]
        size = in_bytes(strings_in([conversation, tools, template_options]))
        if to_run:
            self.lengths.check_given(size)
        else:
            self.lengths.check_tokenized(size, "messages")
        options = {**(template_options or {}), **options}
        return await self._away(size, to_run, self._chat, conversation, tools, options, to_run)

    def _chat(self, messages: list[dict[str, Any]], tools: Any, options: dict[str, Any], to_run: bool) -> list[int]:
        given = [{name: value for name, value in m.items() if name != "role"} for m in messages]
        (masked, tools), stands_for = self._guard.mask([given, tools])
        masked = [{"role": m["role"], **rest} for m, rest in zip(messages, masked, strict=True)]
        if not self.tokenizer.inner.chat_template:
            raise ApiError(400, "this model has no chat template; use /v1/completions.", "messages")
        try:
            text = self.tokenizer.inner.apply_chat_template(masked, tools=tools, tokenize=False, **options)
        except Exception as error:  # a template may fail in any way, and all it was given came from the client
            why = " ".join(str(error).split())[:300].translate(stands_for)
            raise ApiError(400, f"messages: the chat template cannot render them: {why}", "messages") from None
        if to_run:
            self.lengths.check_text(text, "messages")
        try:
            return self._guard.encode(text, stands_for) if stands_for else self.tokenizer.encode(text, special=False)
        except (ModelError, TypeError, UnicodeError):
            raise ApiError(400, "messages: a text holds a lone surrogate; remove it.", "messages") from None


def _for_template(message: ChatMessage, number: int) -> dict[str, Any]:
    """A message as templates expect it: its content as a text, the arguments of its calls as objects."""
    said = message.model_dump(exclude_none=True)
    content = said.get("content", "")
    if isinstance(content, list):
        parts = [part.get("text") if part.get("type", "text") in ("text", "input_text") else None for part in content]
        if not all(isinstance(part, str) for part in parts):
            where = f"messages[{number}].content"
            told = (refusal(part.get("type"), f"{where}[{i}]") for i, part in enumerate(content))
            only = f'{where} may hold text parts only: {{"type": "text", "text": ...}}.'
            raise ApiError(400, next(filter(None, told), only), "messages")
        content = "".join(parts)  # type: ignore[arg-type]
    said["content"] = content
    if isinstance(thoughts := said.get("reasoning"), str):
        said.setdefault("reasoning_content", thoughts)  # the name that templates know for what we call `reasoning`
    for call in said.get("tool_calls", ()):
        function = call.get("function")
        if isinstance(function, dict) and isinstance(function.get("arguments"), str):
            function["arguments"] = _object_or_text(function["arguments"])
    return said


def _object_or_text(text: str) -> Any:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, dict) else text
