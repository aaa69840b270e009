"""`tools` and `tool_choice` of a request: what the model is shown, what its answer must look like, and its parser."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from augury.config.structured import closed
from augury.serve.errors import ApiError
from augury.serve.parsers.choose import Parsers
from augury.serve.parsers.forced import named, required
from augury.serve.parsers.reader import Chain, Parser
from augury.serve.parsers.typed import schemas_of

LONGEST_NAME = 512
FLAGS = '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
CHOICES = '\'none\', \'auto\', \'required\' or {"type": "function", "function": {"name": ...}}'
SCHEMAS = ("$defs", "definitions")  # shared by all tools, once their schemas are one

Tool = dict[str, Any]


@dataclass(slots=True)
class ToolUse:
    """How a request's tools are handled."""

    shown: list[Tool] | None  # to the model, by its chat template
    structure: dict[str, Any] | None  # of a forced call
    parse: Callable[[bool | None], Chain] | None  # a parser for one answer, see `Parsers.of`; None: it is text
    ends_with: str = "tool_calls"  # the finish reason of an answer with calls; OpenAI's is another for named ones
    most_calls: int | None = None

    @classmethod
    def read(cls, tools: list[Tool] | None, choice: Any, parallel: bool | None, parsers: Parsers) -> ToolUse:
        """Check what a request says of tools; where the model is free to call, a parser is needed."""
        reads = parsers.reasoning is not None or parsers.harmony
        if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
            tools, choice = _allowed(tools, choice)
        if choice in (None, "auto", "none") and not tools:
            return cls(None, None, (lambda begins: parsers.of(None, begins)) if reads else None)
        if choice == "none":
            return cls(None, None, (lambda begins: parsers.of(None, begins)) if reads else None, most_calls=0)
        found = check_tools(tools)
        most = 1 if parallel is False else None
        if choice in (None, "auto"):
            if parsers.tool is None:
                raise ApiError(400, f"{FLAGS}, or say tool_choice: 'none' or 'required'.", "tool_choice")
            schemas = schemas_of(tools)
            return cls(tools, None, lambda begins: parsers.of(schemas, begins), most_calls=most)
        if choice == "required":
            return cls(tools, _structure(_any_of(found, most)), lambda _: Chain([Parser(required)]))
        name = _named(choice)
        if name not in found:
            raise ApiError(400, f"tool_choice: {name[:100]!r} is not among the tools.", "tool_choice")
        return cls(tools, _structure(found[name]), lambda _: Chain([Parser(named(name))]), "stop")


def check_tools(tools: list[Tool] | None) -> dict[str, Any]:
    """Check the tools; returns the argument schema of each function, without other properties if it is `strict`."""
    if not tools:
        raise ApiError(400, "tool_choice: there are no tools to choose from; give tools.", "tool_choice")
    found: dict[str, Any] = {}
    for number, tool in enumerate(tools):
        function = tool.get("function")
        name = function.get("name") if isinstance(function, dict) else None
        if tool.get("type", "function") != "function" or not isinstance(function, dict):
            why = 'must be {"type": "function", "function": {"name": ..., "parameters": ...}}.'
            raise ApiError(400, f"tools[{number}] {why}", "tools")
        if not isinstance(name, str) or not 0 < len(name) <= LONGEST_NAME:
            raise ApiError(400, f"tools[{number}].function.name must be a name.", "tools")
        schema = _schema(function, f"tools[{number}].function")
        if found.setdefault(name, schema) != schema:
            raise ApiError(400, f"tools[{number}]: two functions are called {name[:100]!r}.", "tools")
    return found


def _schema(function: Tool, where: str) -> dict[str, Any]:
    """The schema of a function's arguments; a function that names none takes none, as with OpenAI."""
    schema, strict = function.get("parameters"), function.get("strict")
    if schema is None:
        return {"type": "object", "properties": {}, "additionalProperties": False}
    if not isinstance(schema, dict):
        raise ApiError(400, f"{where}.parameters must be a JSON schema.", "tools")
    if not isinstance(strict, bool | None):
        raise ApiError(400, f"{where}.strict must be true or false.", "tools")
    schema = schema or {"type": "object", "properties": {}}
    try:
        return closed(schema) if strict else schema
    except RecursionError:
        raise ApiError(400, f"{where}.parameters is nested too deeply.", "tools") from None


def _allowed(tools: list[Tool] | None, choice: Tool) -> tuple[list[Tool], str]:
    """Read `allowed_tools` (nested in chats, not in responses): the tools that are allowed, and whether one must be."""
    given = choice.get("allowed_tools", choice)
    mode, wanted = (given.get("mode"), given.get("tools")) if isinstance(given, dict) else (None, None)
    if mode not in ("auto", "required") or not isinstance(wanted, list) or not all(isinstance(t, dict) for t in wanted):
        why = "tool_choice.allowed_tools must have a mode, 'auto' or 'required', and a list of tools."
        raise ApiError(400, why, "tool_choice")
    functions = [tool.get("function", tool) for tool in wanted]
    names = [function.get("name") if isinstance(function, dict) else None for function in functions]
    found = check_tools(tools)
    if unknown := [name for name in names if not isinstance(name, str) or name not in found]:
        raise ApiError(400, f"tool_choice: {str(unknown[0])[:100]!r} is not among the tools.", "tool_choice")
    return [tool for tool in tools or () if tool["function"]["name"] in names], mode


def _named(choice: Any) -> str:
    function = choice.get("function") if isinstance(choice, dict) and choice.get("type") == "function" else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        raise ApiError(400, f"tool_choice must be {CHOICES}.", "tool_choice")
    return name


def _structure(schema: Any) -> dict[str, Any]:
    # Without white space: a model that is unsure would write it for ever where JSON allows it.
    return {"json": schema, "disable_any_whitespace": True}


def _any_of(tools: dict[str, Any], most: int | None) -> dict[str, Any]:
    """The schema of a list of calls of these tools."""
    shared: dict[str, Any] = {}
    calls = []
    for name, schema in tools.items():
        own = dict(schema)
        for key in SCHEMAS:
            _share(shared.setdefault(key, {}), own.pop(key, {}), name)
        members = {"name": {"const": name}, "parameters": own}
        calls.append({"type": "object", "properties": members, "required": [*members], "additionalProperties": False})
    limits = {"minItems": 1} if most is None else {"minItems": 1, "maxItems": most}
    return {"type": "array", "items": {"anyOf": calls}, **limits, **{key: each for key, each in shared.items() if each}}


def _share(shared: dict[str, Any], own: Any, name: str) -> None:
    """Add one tool's definitions to the others'; a name that two define differently is refused."""
    if not isinstance(own, dict):
        raise ApiError(400, f"tools: the definitions of {name[:100]!r} must be an object.", "tools")
    for key, schema in own.items():
        if shared.setdefault(key, schema) != schema:
            why = (
                f"tools: two tools define {key[:100]!r} differently; with tool_choice 'required' it can mean one thing."
            )
            raise ApiError(400, why, "tools")
