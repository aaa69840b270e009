"""Probes: a few small greedy requests, on prompts of different kinds, to see how a server drafts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from augury.tools.shared.given_prompts import GivenPrompt
from augury.tools.shared.http import Server, Unreadable
from augury.tools.shared.prompts import SETS

PROBES = 8
TOKENS = 96
HEADERS = {"X-Augury-Probe": "1"}  # our server counts probes separately; others ignore the header


def built_in() -> list[GivenPrompt]:
    """Open questions and edits in turn; one kind alone would make a look-up look too good or too bad."""
    half = PROBES // 2
    questions = [f"Question: {prompt.user}\nAnswer:" for prompt in SETS["chat"][:half]]
    edits = [f"{prompt.user}\n\n{prompt.answer}" for prompt in SETS["edit"][:half]]
    return [text for pair in zip(questions, edits, strict=True) for text in pair]


def send(server: Server, wanted: str | None, prompts: Sequence[GivenPrompt]) -> int:
    """Send each prompt once, one after another, and return how many were sent."""
    models = server.models(timeout=5.0)
    model = wanted if wanted in models else next(iter(models), None)
    if model is None:
        raise Unreadable("probe", f"{server.base}/v1/models lists no model to send a probe to.")
    for prompt in prompts:
        body: dict[str, Any] = {"model": model, "max_tokens": TOKENS, "temperature": 0}
        if isinstance(prompt, str):
            server.post("/v1/completions", {**body, "prompt": prompt}, 60.0, HEADERS)
        else:
            server.post("/v1/chat/completions", {**body, "messages": prompt}, 60.0, HEADERS)
    return len(prompts)
