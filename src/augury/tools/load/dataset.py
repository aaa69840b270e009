"""Prompts for a load test: the built-in sets, or a file in any of the common formats."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from augury.config.errors import ConfigError
from augury.tools.replay.records import Conversation
from augury.tools.replay.traces import TraceReader
from augury.tools.shared.prompts import SETS

Body = dict[str, Any]  # a request's own fields, without the command line's options
READ = 100_000  # maximum lines of a file that are read


def load(name: str, wanted: int) -> list[Body]:
    """The first prompts of a set or a file, at most `wanted`."""
    if name in SETS:
        return [
            {"messages": prompt.messages()}
            | ({"continue_final_message": True, "add_generation_prompt": False} if prompt.answer else {})
            for prompt in SETS[name]
        ][:wanted]
    path = Path(name)
    if not path.is_file():
        raise ConfigError(f"--dataset {name}: neither a file nor one of the built-in sets ({', '.join(SETS)}).")
    found = _own(path, wanted)
    if found is None:
        reader = TraceReader([path], limit=wanted)
        found = [body for body in map(_asked, reader) if body is not None]
    if not found:
        raise ConfigError(f"--dataset {name}: no prompt in it.")
    return found


def fingerprint(bodies: list[Body]) -> str:
    """A hash of the data set, so that only runs on the same prompts are compared prompt by prompt."""
    return hashlib.sha256(json.dumps(bodies, sort_keys=True).encode()).hexdigest()[:16]


def _own(path: Path, wanted: int) -> list[Body] | None:
    """Prompts from lines of text, JSON strings, messages or OpenAI requests; None for a trace in another format."""
    try:
        with path.open(encoding="utf-8-sig") as file:
            first = next((line for line in file if line.strip()), "").strip()
            if not first:
                return []
            if first[0] == "[" and not _is_messages(_parsed(first)):
                return None
            file.seek(0)
            lines = [line.strip() for _, line in zip(range(READ), file, strict=False) if line.strip()]
    except UnicodeDecodeError:
        return None
    except OSError as error:
        raise ConfigError(f"--dataset {path}: {error.strerror}.") from None
    if first[0] not in '"{[':
        return None if path.suffix in (".log", ".gz") else [{"prompt": line} for line in lines[:wanted]]
    bodies: list[Body] = []
    for number, line in enumerate(lines[:wanted], 1):
        body = _body(_parsed(line))
        if body is None:
            if number == 1:
                return None
            raise ConfigError(f"--dataset {path}, prompt {number}: neither a string nor messages nor a request.")
        bodies.append(body)
    return bodies


def _parsed(line: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _is_messages(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(m, dict) and "role" in m for m in value)


def _body(value: Any) -> Body | None:
    """A line as a request: a string, messages, or a request's own JSON; None if it has an answer with it."""
    if isinstance(value, str):
        return {"prompt": value}
    if _is_messages(value):
        return {"messages": value}
    if not isinstance(value, dict) or any(key in value for key in ("response", "completion", "choices")):
        return None
    messages: Any = value.get("messages")
    if _is_messages(messages) and messages[-1].get("role") != "assistant":
        return dict(value)
    if "messages" not in value and isinstance(value.get("prompt"), (str, list)):
        return dict(value)
    return None


def _asked(conversation: Conversation) -> Body | None:
    """A recorded conversation as a request: everything up to its last response; None if that is empty."""
    responses = conversation.responses
    turns = conversation.turns[: responses[-1]] if responses else conversation.turns
    if not turns or not any(turn.said for turn in turns):
        return None
    if any(not isinstance(turn.said, str) for turn in turns):
        return {"prompt": [token for turn in turns for token in turn.said if isinstance(token, int)]}
    if conversation.chat:
        return {"messages": [{"role": turn.role, "content": turn.said} for turn in turns]}
    return {"prompt": "".join(str(turn.said) for turn in turns)}


def fitted(body: Body, chat: bool) -> Body:
    """The prompt converted to the chosen route: a text becomes a user message, or messages become one text."""
    if chat and "messages" not in body:
        if not isinstance(body["prompt"], str):
            raise ConfigError("--endpoint chat: the data set holds token ids; use --endpoint completions.")
        rest = {key: value for key, value in body.items() if key != "prompt"}
        return rest | {"messages": [{"role": "user", "content": body["prompt"]}]}
    if not chat and "prompt" not in body:
        spoken = [m.get("content") for m in body["messages"] if isinstance(m.get("content"), str)]
        dropped = ("messages", "continue_final_message", "add_generation_prompt")
        rest = {key: value for key, value in body.items() if key not in dropped}
        return rest | {"prompt": "\n\n".join(spoken)}
    return body


def marked(body: Body, line: str) -> Body:
    """The prompt with its own first line, so that no prefix cache holds it; token ids are left unchanged."""
    if "messages" in body:
        messages = list(body["messages"])
        at = next((i for i, m in enumerate(messages) if m.get("role") == "user"), 0)
        said = messages[at].get("content")
        if isinstance(said, str):
            messages[at] = messages[at] | {"content": f"{line}\n{said}"}
        elif isinstance(said, list):
            messages[at] = messages[at] | {"content": [{"type": "text", "text": line}, *said]}
        return body | {"messages": messages}
    prompt = body["prompt"]
    if isinstance(prompt, str):
        return body | {"prompt": f"{line}\n{prompt}"}
    if all(isinstance(one, str) for one in prompt):
        return body | {"prompt": [f"{line}\n{one}" for one in prompt]}
    return body
