"""Prompts and helpers for the tests of the server."""

from __future__ import annotations

from typing import Any

from augury import LLM, SamplingParams

PROMPTS = ["Hello hello hello", "The cat sat. The cat", "abcabcabc", "x"]
CHAT: Any = [{"role": "user", "content": "say abc abc abc"}]


def texts(llm: LLM, prompts: list[Any], **params: Any) -> list[str]:
    """What the engine says offline, answer after answer."""
    outputs = llm.generate(prompts, SamplingParams(**params), use_tqdm=False)
    return [answer.text for output in outputs for answer in output.outputs]


def spec_metrics(response: Any) -> dict[str, Any]:
    return dict(response.model_extra["metrics"]["speculative_decoding"])
