"""Converts Anthropic's messages of content blocks to the messages of a chat."""

from __future__ import annotations

import json
from typing import Any

from augury.serve.errors import ApiError
from augury.serve.media import refusal

Block = dict[str, Any]
KINDS = "text, thinking, tool_use and tool_result"


def conversation(system: str | list[Block] | None, messages: list[Block]) -> list[dict[str, Any]]:
    """The chat's messages; results of tools become messages of their own, before the user's text beside them."""
    found: list[dict[str, Any]] = []
    if system:
        found.append({"role": "system", "content": _text(system, "system")})
    for number, message in enumerate(messages):
        where, role, content = f"messages.{number}", message.get("role"), message.get("content")
        if role not in ("user", "assistant"):
            raise ApiError(
                400, f"{where}.role: must be 'user' or 'assistant'; instructions go into system.", "messages"
            )
        if isinstance(content, str):
            found.append({"role": role, "content": content})
        elif isinstance(content, list):
            found += _said(content, where) if role == "assistant" else _asked(content, where)
        else:
            raise ApiError(400, f"{where}.content: must be a text or a list of content blocks.", "messages")
    return found


def _said(blocks: list[Any], where: str) -> list[dict[str, Any]]:
    """An assistant's blocks as one message."""
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for number, block in enumerate(blocks):
        place, kind = f"{where}.content.{number}", _kind(block)
        if kind == "text":
            texts.append(_string(block, "text", place))
        elif kind == "thinking":
            thoughts.append(_string(block, "thinking", place))
        elif kind == "tool_use":
            function = {"name": _string(block, "name", place), "arguments": json.dumps(block.get("input") or {})}
            calls.append({"id": _string(block, "id", place), "type": "function", "function": function})
        else:
            raise _unknown(kind, place)
    said: dict[str, Any] = {"role": "assistant", "content": "".join(texts)}
    if thoughts:
        said["reasoning_content"] = "".join(thoughts)
    return [{**said, "tool_calls": calls}] if calls else [said]


def _asked(blocks: list[Any], where: str) -> list[dict[str, Any]]:
    """A user's blocks as messages: one for each result of a tool, then one for the text."""
    results: list[dict[str, Any]] = []
    texts: list[str] = []
    for number, block in enumerate(blocks):
        place, kind = f"{where}.content.{number}", _kind(block)
        if kind == "text":
            texts.append(_string(block, "text", place))
        elif kind == "tool_result":
            output = _text(block.get("content") or "", f"{place}.content")
            output = f"Error: {output}" if block.get("is_error") else output
            results.append({"role": "tool", "tool_call_id": _string(block, "tool_use_id", place), "content": output})
        else:
            raise _unknown(kind, place)
    return [*results, {"role": "user", "content": "".join(texts)}] if texts or not results else results


def _kind(block: Any) -> str:
    return str(block.get("type")) if isinstance(block, dict) else type(block).__name__


def _string(block: Block, name: str, where: str) -> str:
    value = block.get(name)
    if not isinstance(value, str):
        raise ApiError(400, f"{where}.{name}: must be a text.", "messages")
    return value


def _unknown(kind: str, where: str) -> ApiError:
    why = f"{where}: blocks of type {kind[:60]!r} are not taken here; {KINDS} are, in the roles that have them."
    return ApiError(400, refusal(kind, where, "blocks") or why, "messages")


def _text(content: Any, where: str) -> str:
    """A text as it is, or the texts of blocks joined."""
    if isinstance(content, str):
        return content
    blocks = content if isinstance(content, list) else [content]
    texts = [block.get("text") if _kind(block) == "text" else None for block in blocks]
    found = [text for text in texts if isinstance(text, str)]
    if len(found) < len(texts):
        raise ApiError(400, f"{where}: must be a text or a list of text blocks.", where.partition(".")[0])
    return "".join(found)
