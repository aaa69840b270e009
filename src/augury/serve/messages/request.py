"""POST /v1/messages: Anthropic's request, and its conversion to a chat request."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, ValidationError

from augury.config.sampling import MOST
from augury.serve.errors import ApiError
from augury.serve.messages.conversation import conversation
from augury.serve.openai import DIRECT, MOST_MESSAGES, MOST_STOPS, ChatRequest, Generation, Objects, Texts

SAME = (*DIRECT, "model", "cache_salt", "speculative", "structured_outputs", "prediction")
# What only Anthropic's own servers do; each with the values that ask for nothing.
REFUSED: dict[str, tuple[tuple[Any, ...], str]] = {
    "container": ((None,), "nothing runs here but the model; leave it out"),
    "mcp_servers": ((None, []), "tools of servers are not called here; give them as tools and call them yourself"),
    "context_management": ((None,), "nothing is cut; shorten the messages"),
    "n": ((None, 1), "there is one answer; ask again for another"),
    "speed": ((None, "standard"), "there is one speed; leave it out"),
}
THINKING = ("enabled", "disabled", "adaptive", "between_tools")
# Without effect here, and not misspelled fields: the user, billing, what is cached (everything is).
UNUSED = (
    "metadata",
    "service_tier",
    "inference_geo",
    "cache_control",
    "diagnostics",
    "user_profile_id",
    "workspace_id",
)


class MessagesRequest(Generation):
    """POST /v1/messages."""

    messages: Objects = Field(min_length=1, max_length=MOST_MESSAGES)
    max_tokens: int = Field(ge=1, le=MOST)
    system: str | Objects | None = None
    stop_sequences: Annotated[Texts, Field(max_length=MOST_STOPS)] | None = None
    tools: Objects | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: dict[str, Any] | None = None
    output_config: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    def chat(self) -> ChatRequest:
        """Convert it to a chat request."""
        self._check()
        given = {name: value for name in SAME if (value := getattr(self, name)) is not None}
        kind, allowed, parallel = _choice(self.tool_choice)
        asked = conversation(self.system, self.messages)
        effort = (self.output_config or {}).get("effort")
        options = {**({"reasoning_effort": effort} if effort else {}), **(self.chat_template_kwargs or {})}
        if (self.thinking or {}).get("type") == "disabled":
            options.setdefault("enable_thinking", False)
        prefilled = asked[-1]["role"] == "assistant" and not asked[-1].get("tool_calls")
        try:
            made = ChatRequest.model_validate(
                {
                    **given,
                    "messages": asked,
                    "tools": _tools(self.tools),
                    "tool_choice": allowed if kind == "tool" else "required" if kind == "any" else kind,
                    "parallel_tool_calls": parallel,
                    "response_format": _format(self.output_config) or self.response_format,
                    "max_completion_tokens": self.max_tokens,
                    "stop": [*_listed(self.stop), *(self.stop_sequences or ())] or None,
                    "chat_template_kwargs": options or None,
                    "include_reasoning": self._shows_thinking(),
                    "continue_final_message": prefilled,
                    "add_generation_prompt": not prefilled,
                    "stream": self.stream,
                }
            )
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False, include_input=False)[0]
            where = ".".join(map(str, first["loc"]))
            raise ApiError(400, f"{where}: {first['msg'].lower()}.", where.partition(".")[0]) from None
        made.came_from(self._tenant, self._client, self._probe, self._lora)
        return made

    def _check(self) -> None:
        for name in UNUSED:
            (self.model_extra or {}).pop(name, None)
        self.check_common()
        for name, (nothing, why) in REFUSED.items():
            if getattr(self, name, (self.model_extra or {}).get(name)) not in nothing:
                raise ApiError(400, f"{name}: {why}.", name)
        kind = (self.thinking or {}).get("type")
        if self.thinking is not None and kind not in THINKING:
            raise ApiError(400, f"thinking.type: must be one of {', '.join(THINKING)}.", "thinking")
        budget = (self.thinking or {}).get("budget_tokens")
        if budget is not None and (type(budget) is not int or not 1 <= budget < self.max_tokens):
            raise ApiError(400, "thinking.budget_tokens: must be a number below max_tokens.", "thinking")

    def _shows_thinking(self) -> bool:
        """Reasoning is shown unless the client switches it off or wants it left out: the model may reason unasked."""
        thinking = self.thinking or {}
        return thinking.get("type") != "disabled" and thinking.get("display") != "omitted"


def _listed(stop: str | list[str] | None) -> list[str]:
    return [stop] if isinstance(stop, str) else list(stop or ())


def _tools(tools: list[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
    """A client's own tools in the form that chats have."""
    found = []
    for number, tool in enumerate(tools or ()):
        if tool.get("type", "custom") not in ("custom", None):
            why = f"tools.{number}: {str(tool['type'])[:60]!r} does not run here; tools with an input_schema do."
            raise ApiError(400, why, "tools")
        function = {"name": tool.get("name"), "description": tool.get("description"), "strict": tool.get("strict")}
        function["parameters"] = tool.get("input_schema")
        found.append({"type": "function", "function": {k: v for k, v in function.items() if v is not None}})
    return found or None


def _choice(choice: dict[str, Any] | None) -> tuple[str | None, Any, bool | None]:
    """The kind of choice, the tool that is named, and whether several may be called."""
    if choice is None:
        return None, None, None
    kind = choice.get("type")
    if kind not in ("auto", "any", "tool", "none"):
        raise ApiError(400, "tool_choice.type: must be 'auto', 'any', 'tool' or 'none'.", "tool_choice")
    if kind == "tool" and not isinstance(choice.get("name"), str):
        raise ApiError(400, "tool_choice.name: must be the name of a tool.", "tool_choice")
    named = {"type": "function", "function": {"name": choice.get("name")}}
    return kind, named, False if choice.get("disable_parallel_tool_use") else None


def _format(config: dict[str, Any] | None) -> dict[str, Any] | None:
    """`output_config.format` as `response_format`."""
    given = (config or {}).get("format")
    if given is None:
        return None
    if not isinstance(given, dict) or given.get("type") != "json_schema" or not isinstance(given.get("schema"), dict):
        why = 'output_config.format: must be {"type": "json_schema", "schema": ...}.'
        raise ApiError(400, why, "output_config")
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": given["schema"]}}
