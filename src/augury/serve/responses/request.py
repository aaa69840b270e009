"""POST /v1/responses: OpenAI's newer request, and its conversion to a chat request."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, ValidationError

from augury.config.sampling import MOST
from augury.serve.errors import ApiError
from augury.serve.openai import DIRECT, ChatRequest, Generation, Objects
from augury.serve.responses.conversation import Item, messages
from augury.serve.responses.echo import check_conversation, check_echo, written

SAME = (*DIRECT, "model", "parallel_tool_calls", "include_reasoning", "cache_salt", "speculative", "structured_outputs")
# What only OpenAI's own servers do; each with the values that ask for nothing.
REFUSED: dict[str, tuple[tuple[Any, ...], str]] = {
    "n": ((None, 1), "a response is one answer; ask again for another"),
    "background": ((None, False), "answers are not kept running without a client; leave it out"),
    "prompt": ((None,), "there are no stored prompts; put the text into input"),
    "conversation": ((None,), "there are no stored conversations; use previous_response_id"),
    "truncation": ((None, "disabled"), "nothing is cut; shorten the input"),
    "top_logprobs": ((None, 0), "log-probabilities come with /v1/chat/completions"),
    "context_management": ((None, []), "nothing is cut; shorten the input"),
}


FORMATS = ("text", "json_object", "json_schema")
ECHOED = ("instructions", "metadata", "reasoning", "text", "tools", "tool_choice", "input")


class ResponsesRequest(Generation):
    """POST /v1/responses."""

    input: str | Annotated[Objects, Field(min_length=1)]
    instructions: str | None = None
    previous_response_id: str | None = Field(None, max_length=200)
    store: bool | None = True
    max_output_tokens: int | None = Field(None, ge=1, le=MOST)
    tools: Objects | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: dict[str, Any] | None = None
    reasoning: dict[str, Any] | None = None
    include_reasoning: bool | None = True
    include: list[str] | None = None
    metadata: dict[str, Any] | None = None
    truncation: str | None = None
    background: bool | None = None
    top_logprobs: int | None = None
    max_tool_calls: int | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    def check(self) -> int:
        """Refuse what cannot be done here; returns about how many bytes the response repeats."""
        size = check_echo(self) + check_conversation(self.items())
        for name, (nothing, why) in REFUSED.items():
            given = getattr(self, name, (self.model_extra or {}).get(name))
            if given not in nothing:
                raise ApiError(400, f"{name}: {why}.", name)
        for name in ECHOED:
            try:
                written(getattr(self, name))
            except (ValueError, RecursionError):
                why = (
                    "it holds a lone surrogate or an infinite number, or is nested too deeply; the response repeats it."
                )
                raise ApiError(400, f"{name}: {why}", name) from None
        if "message.output_text.logprobs" in (self.include or ()):
            raise ApiError(400, f"include: {REFUSED['top_logprobs'][1]}.", "include")
        return size

    def items(self) -> list[Item]:
        """The items that this request adds to the conversation."""
        if isinstance(self.input, str):
            return [{"type": "message", "role": "user", "content": self.input}]
        return self.input

    def chat(self, before: list[Item]) -> ChatRequest:
        """Convert it to a chat request that continues from the items of an earlier response."""
        given = {name: value for name in SAME if (value := getattr(self, name)) is not None}
        conversation = messages([*before, *self.items()], self.instructions)
        try:
            made = ChatRequest.model_validate(
                {
                    **given,
                    "messages": conversation,
                    "tools": _tools(self.tools),
                    "tool_choice": _choice(self.tool_choice),
                    "response_format": _format(self.text) or self.response_format,
                    "max_completion_tokens": self.max_output_tokens or self.max_tokens,
                    "reasoning_effort": (self.reasoning or {}).get("effort"),
                    "chat_template_kwargs": self.chat_template_kwargs,
                    "stream": self.stream,
                }
            )
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False, include_input=False)[0]
            where = ".".join(map(str, first["loc"])).replace("messages", "input", 1)
            raise ApiError(400, f"{where}: {first['msg'].lower()}.", where.partition(".")[0]) from None
        made.came_from(self._tenant, self._client, self._probe, self._lora)
        return made


def _tools(tools: list[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
    """Function tools in the form that chats have."""
    found = []
    for number, tool in enumerate(tools or ()):
        kind = tool.get("type")
        if kind != "function":
            why = f"tools[{number}]: {str(kind)[:60]!r} does not run here; functions do, which the client runs itself."
            raise ApiError(400, why, "tools")
        inner = tool.get("function")
        found.append(
            tool
            if isinstance(inner, dict)
            else {"type": "function", "function": {k: v for k, v in tool.items() if k != "type" and v is not None}}
        )
    return found or None


def _choice(choice: Any) -> Any:
    if isinstance(choice, dict) and choice.get("type") == "function" and "name" in choice:
        return {"type": "function", "function": {"name": choice["name"]}}
    return choice


def _format(text: dict[str, Any] | None) -> dict[str, Any] | None:
    """`text.format` as `response_format`."""
    given = (text or {}).get("format")
    if given is None:
        return None
    if not isinstance(given, dict):
        raise ApiError(400, "text.format must be an object with a type.", "text")
    if given.get("type") not in FORMATS:
        raise ApiError(400, f"text.format.type must be one of {', '.join(FORMATS)}.", "text")
    if given["type"] != "json_schema":
        return given
    if not isinstance(given.get("schema"), dict):
        raise ApiError(400, "text.format.schema must be a JSON schema.", "text")
    return {"type": "json_schema", "json_schema": given}
