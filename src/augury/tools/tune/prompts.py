"""The prompts of a tuning as conversations: the built-in sets, or a file in any of the common formats."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from augury.config.errors import ConfigError
from augury.tools.load.dataset import Body, fitted, load
from augury.tools.shared.prompts import BenchPrompt, load_prompts

MOST = 2000  # prompts per file; a race uses no more


def conversations(names: list[str]) -> list[Body]:
    """Every prompt of every set and file, as the fields of a chat request."""
    return [body for name in names for body in _read(name)]


def _read(name: str) -> list[Body]:
    try:
        return [_body(prompt) for prompt in load_prompts(name)]
    except (ConfigError, UnicodeDecodeError):  # not in our own format: try traces, messages and requests
        try:
            return [fitted(body, chat=True) for body in load(name, MOST)]
        except ConfigError as error:
            raise ConfigError(str(error).replace("--dataset", "--prompts", 1)) from None


def _body(prompt: BenchPrompt) -> Body:
    continued = {"continue_final_message": True, "add_generation_prompt": False} if prompt.answer else {}
    return {"messages": prompt.messages(), **continued}


def token_ids(bodies: list[Body], directory: str, room: int) -> list[list[int]]:
    """Token ids through the model's chat template; a ConfigError names a prompt that leaves no room for an answer."""
    from augury.model.checkpoint import read_config
    from augury.model.tokenizer import Tokenizer

    tokenizer = Tokenizer(Path(directory))
    longest = read_config(Path(directory), quantised=True).max_position_embeddings
    every = []
    for number, body in enumerate(bodies, 1):
        options: dict[str, Any] = {"continue_final_message": True} if body.get("continue_final_message") else {}
        ids = tokenizer.chat(body["messages"], **(options or {"add_generation_prompt": True}))
        if len(ids) + room > longest:
            begins = str(body["messages"][0].get("content"))[:40]
            raise ConfigError(
                f"--prompts: prompt {number} ({begins!r}...) has {len(ids)} tokens; with --max-tokens {room} that is "
                f"more than the model's context of {longest}. Leave it out, or lower --max-tokens."
            )
        every.append(ids)
    return every
