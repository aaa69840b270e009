"""Converts the formats of recorded conversations to one common form."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from augury.config.errors import ConfigError, shown
from augury.tools.replay.swe_agent import as_messages, is_run

ROLES = {
    "human": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "model": "assistant",
    "ai": "assistant",
    "claude": "assistant",
    "function_call": "assistant",
    "developer": "system",
    "observation": "tool",
    "function": "tool",
    "function_response": "tool",
}
HISTORIES = ("messages", "conversations", "conversation", "traj", "trajectory", "history")
ANSWERS = ("choices", "response", "completion", "output", "generated_text", "answer")
# With a history: an `answer` there may be the reference answer rather than the model's.
LOGGED = ("choices", "response", "completion")
WRAPPERS = ("data", "records", "results", "items", "traces", "requests", "trajectories")
QUESTIONS = ("question", "instruction", "query", "input")  # asked in a chat, unlike a bare `prompt`
CLASSES = ("class", "category", "task", "dataset")
ANSWER_IDS = ("token_ids", "output_token_ids", "response_token_ids", "completion_token_ids")
HIGHEST = 2**31 - 1  # token ids are int32


class Odd(ConfigError):
    """A record in an unknown format."""


class Message(NamedTuple):
    """One message of a conversation: text, or token ids as recorded."""

    role: str
    said: str | list[int]


@dataclass(frozen=True, slots=True)
class Conversation:
    """Turns in order; an assistant's turn is a response, and everything before it is the prompt."""

    turns: list[Message]
    chat: bool  # turns of a chat; False: bare prompt and completion
    label: str  # class of request
    tenant: str
    where: str  # line or record of its file
    asked: int = 0  # the first turns, of any role, that are prompt: their answers have records of their own

    @property
    def responses(self) -> list[int]:
        """The indices of the turns that are responses."""
        turns = enumerate(self.turns)
        return [i for i, turn in turns if i >= self.asked and turn.role == "assistant" and turn.said]


class RecordPlace(NamedTuple):
    """Where a record is in its file, and which field holds its tenant."""

    file: str
    where: str
    tenant_field: str | None = None


def unwrapped(value: Any) -> list[Any]:
    """The records in a JSON value: the value itself, or those it wraps."""
    if not isinstance(value, dict) or any(name in value for name in (*HISTORIES, *QUESTIONS, "prompt", "request")):
        return [value]
    lists = [value[name] for name in WRAPPERS if isinstance(value.get(name), list)]
    return next((inside for inside in lists if inside and all(isinstance(r, dict) for r in inside)), [value])


def conversations(record: Any, place: RecordPlace) -> Iterator[Conversation]:
    """The conversations of one record: one per answer that it holds, or a single one."""
    if isinstance(record, list) and record and all(isinstance(turn, dict) for turn in record):
        record = {"messages": record}
    if not isinstance(record, dict):
        raise Odd(f"expected a JSON object, found {shown(record)}")
    label, tenant = _label(record, place.file), _tenant(record, place.tenant_field)

    def made(turns: list[Message], chat: bool, asked: int = 0) -> Conversation:
        return Conversation(turns, chat, label, tenant, place.where, asked)

    if _tokens(record):
        yield made(_token_turns(record), False)
        return
    if is_run(record):
        messages, shown_before = as_messages(record)
        yield made(_messages(messages), True, shown_before)
        return
    opened = _opened(record)
    history = next((opened[name] for name in HISTORIES if isinstance(opened.get(name), list)), None)
    prompt, chat = (_messages(history), True) if history is not None else _prompt(opened)
    answers = _answers(opened, ANSWERS if history is None else LOGGED)
    for answer in answers:
        yield made([*prompt, answer], chat, len(prompt))
    if not answers:
        yield made(prompt, chat, 0 if opened is record else len(prompt))


def _label(record: dict[str, Any], file: str) -> str:
    for name in CLASSES:
        value = record.get(name)
        if isinstance(value, str | int) and not isinstance(value, bool) and value != "":
            return str(value)
    return file


def _tenant(record: dict[str, Any], field: str | None) -> str:
    if field is None:
        return ""
    value: Any = record
    for part in field.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    if value is None or isinstance(value, dict | list):
        raise Odd(f"--tenant-field {field}: this record has no such field, or it is no plain value")
    return str(value)


def _tokens(record: dict[str, Any]) -> bool:
    return any(isinstance(record.get(name), list) for name in ("prompt_token_ids", *ANSWER_IDS))


def _token_turns(record: dict[str, Any]) -> list[Message]:
    turns = [Message("user", token_ids(record.get("prompt_token_ids") or [], "prompt_token_ids"))]
    for name in ANSWER_IDS:
        if record.get(name) is not None:
            return [*turns, Message("assistant", token_ids(record[name], name))]
    return turns


def token_ids(given: Any, name: str) -> list[int]:
    """Check that a value is a list of int32 token ids and return it."""
    if not isinstance(given, list):
        raise Odd(f"{name} must be a list of token ids, found {shown(given)}")
    for i, token in enumerate(given):
        if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token <= HIGHEST:
            raise Odd(f"{name}[{i}] is {shown(token)}; token ids are whole numbers from 0 to {HIGHEST}")
    return given


def _opened(record: dict[str, Any]) -> dict[str, Any]:
    """A log entry's request and response merged into one record."""
    request = _body(record.get("request", record.get("body")))
    if not isinstance(request, dict):
        return record
    response = _body(record.get("response"))
    opened = {**record, **request}
    opened.pop("response", None)
    return opened | response if isinstance(response, dict) else opened | {"response": response}


def _body(part: Any) -> Any:
    """A request or response, unpacked from the JSON text or the envelope it was logged in."""
    if isinstance(part, str) and part.lstrip().startswith("{"):
        try:
            part = json.loads(part)
        except ValueError:
            return part
    if isinstance(part, dict) and isinstance(part.get("body"), dict | str):
        return _body(part["body"])
    return part


def _prompt(record: dict[str, Any]) -> tuple[list[Message], bool]:
    prompt = record.get("prompt")
    if isinstance(prompt, str):
        return [Message("user", prompt)], False
    if isinstance(prompt, list) and prompt and all(isinstance(part, dict) for part in prompt):
        return _messages(prompt), True
    if isinstance(prompt, list) and all(isinstance(part, int) for part in prompt):
        return [Message("user", token_ids(prompt, "prompt"))], False
    asked = [record[name] for name in QUESTIONS if isinstance(record.get(name), str) and record[name]]
    if asked:
        return [Message("user", "\n\n".join(asked))], True
    if isinstance(record.get("turns"), list) and all(isinstance(turn, str) for turn in record["turns"]):
        return [Message("user", turn) for turn in record["turns"]], True
    raise Odd(f"no conversation in it; its fields are {', '.join(map(str, list(record)[:12])) or 'none'}")


def _answers(record: dict[str, Any], names: tuple[str, ...]) -> list[Message]:
    for name in names:
        value, body = record.get(name), _body(record.get(name))
        if isinstance(body, dict) and isinstance(body.get("choices"), list):
            value = body["choices"]
        if isinstance(value, str):
            return [Message("assistant", value)] if value else []
        if isinstance(value, dict):
            return [] if "error" in value else [_answer(value, name)]
        if isinstance(value, list) and value:
            return [_answer(choice, name) for choice in value]
    return []


def _answer(choice: Any, name: str) -> Message:
    if isinstance(choice, str):
        return Message("assistant", choice)
    inner = choice.get("message", choice) if isinstance(choice, dict) else None
    if isinstance(inner, dict) and isinstance(inner.get("text"), str):
        return Message("assistant", inner["text"])
    if isinstance(inner, dict) and any(part in inner for part in ("content", "tool_calls", "function_call")):
        return Message("assistant", _said(inner))
    if isinstance(choice, dict) and name != "choices":
        return Message("assistant", json.dumps(choice, ensure_ascii=False))  # an answer in JSON
    raise Odd(f"{name!r} holds neither text nor a message: {shown(choice)}")


def _messages(given: list[Any]) -> list[Message]:
    flat = [turn for part in given for turn in (part if isinstance(part, list) else [part])]
    return [_turn(message, i) for i, message in enumerate(flat)]


def _turn(message: Any, index: int) -> Message:
    if not isinstance(message, dict):
        raise Odd(f"message {index} is not an object: {shown(message)}")
    role = message.get("role", message.get("from"))
    if not isinstance(role, str):
        raise Odd(f"message {index} has no role; its fields are {', '.join(map(str, list(message)[:8])) or 'none'}")
    role = role.lower()
    return Message(ROLES.get(role, role), _said(message, index))


def _said(message: dict[str, Any], index: int = 0) -> str:
    """All generated text of a message: reasoning, content, and tool calls with their arguments."""
    thoughts = message.get("reasoning_content") or message.get("reasoning")
    parts = [f"<think>\n{thoughts}\n</think>\n"] if isinstance(thoughts, str) else []
    parts.append(_content(message.get("content", message.get("value")), index))
    calls = message.get("tool_calls") or []
    if message.get("function_call"):
        calls = [*calls, message["function_call"]]
    if not isinstance(calls, list):
        raise Odd(f"message {index}: tool_calls must be a list, found {shown(calls)}")
    return "".join(parts) + "\n".join(_call(call, index) for call in calls)


def _content(content: Any, index: int) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, dict):
        return json.dumps(content, ensure_ascii=False)
    if not isinstance(content, list):
        raise Odd(f"message {index}: content must be text or a list of parts, found {shown(content)}")
    return "\n".join(filter(None, (_part(part, index) for part in content)))


def _part(part: Any, index: int) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, dict) and isinstance(part.get("text"), str):
        return str(part["text"])
    if isinstance(part, dict) and part.get("type") == "tool_use":
        return _call({"name": part.get("name"), "arguments": part.get("input")}, index)
    if isinstance(part, dict) and part.get("type") == "tool_result":
        return _content(part.get("content"), index)
    return ""  # an image or audio, whose tokens are not text


def _call(call: Any, index: int) -> str:
    inner = call.get("function", call) if isinstance(call, dict) else None
    if not isinstance(inner, dict) or "name" not in inner:
        raise Odd(f"message {index}: a tool call has no name: {shown(call)}")
    given = inner.get("arguments")
    arguments = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
    return f'<tool_call>\n{{"name": {json.dumps(inner["name"])}, "arguments": {arguments}}}\n</tool_call>'
