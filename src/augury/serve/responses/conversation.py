"""Converts a response's input items to the messages of a chat."""

from __future__ import annotations

from typing import Any

from augury.serve.errors import ApiError
from augury.serve.media import refusal

Item = dict[str, Any]
PARTS = ("input_text", "output_text", "text", "reasoning_text", "summary_text")
KINDS = "message, function_call, function_call_output and reasoning"


def messages(items: list[Item], instructions: str | None) -> list[dict[str, Any]]:
    """The conversation; calls and reasoning become part of the assistant's message that they belong to."""
    found: list[dict[str, Any]] = []
    if instructions:
        found.append({"role": "system", "content": instructions})
    thoughts = ""
    for number, item in enumerate(items):
        kind = item.get("type", "message" if "role" in item else None)
        if kind == "message":
            said = {"role": item.get("role"), "content": _text(item.get("content"), number)}
            found.append(_with(thoughts, said))
        elif kind == "function_call":
            _add_call(found, item, thoughts)
        elif kind == "function_call_output":
            output = _text(item.get("output"), number)
            found.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": output})
        elif kind != "reasoning":
            why = f"input[{number}]: items of type {str(kind)[:60]!r} are not taken; {KINDS} are."
            raise ApiError(400, why, "input")
        thoughts = _text(item.get("content") or item.get("summary"), number) if kind == "reasoning" else ""
    return found


def _with(thoughts: str, said: dict[str, Any]) -> dict[str, Any]:
    return {**said, "reasoning_content": thoughts} if thoughts and said["role"] == "assistant" else said


def _add_call(found: list[dict[str, Any]], item: Item, thoughts: str) -> None:
    function = {"name": item.get("name"), "arguments": item.get("arguments")}
    call = {"id": item.get("call_id"), "type": "function", "function": function}
    if found and found[-1]["role"] == "assistant" and not thoughts:
        found[-1].setdefault("tool_calls", []).append(call)
    else:
        found.append(_with(thoughts, {"role": "assistant", "content": "", "tool_calls": [call]}))


def _text(content: Any, number: int) -> str:
    """A text as it is, or the texts of parts joined."""
    if content is None or isinstance(content, str):
        return content or ""
    parts = content if isinstance(content, list) else [content]
    texts = [part.get("text") if isinstance(part, dict) and part.get("type") in PARTS else None for part in parts]
    if not all(isinstance(text, str) for text in texts):
        where = f"input[{number}].content"
        told = (refusal(part.get("type"), f"{where}[{i}]") for i, part in enumerate(parts) if isinstance(part, dict))
        raise ApiError(400, next(filter(None, told), f"{where} may hold text parts only."), "input")
    return "".join(texts)  # type: ignore[arg-type]
