"""vllm.inputs: prompts as dictionaries."""

from __future__ import annotations

from typing import NotRequired, TypedDict


class TextPrompt(TypedDict):
    """A prompt as text: `TextPrompt(prompt="Hello")`."""

    prompt: str
    multi_modal_data: NotRequired[None]
    cache_salt: NotRequired[str]


class TokensPrompt(TypedDict):
    """A prompt as token ids: `TokensPrompt(prompt_token_ids=[1, 2, 3])`."""

    prompt_token_ids: list[int]
    prompt: NotRequired[str]
    multi_modal_data: NotRequired[None]
    cache_salt: NotRequired[str]
