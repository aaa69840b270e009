"""Runs of SWE-agent (`.traj` files): an agent's steps, often with the messages they came from."""

from __future__ import annotations

from typing import Any

STEP = ("action", "observation", "response", "thought")


def is_run(record: Any) -> bool:
    """Whether a record is a SWE-agent run, whose trajectory has steps instead of messages."""
    steps = record.get("trajectory") if isinstance(record, dict) else None
    return (
        isinstance(steps, list)
        and bool(steps)
        and all(isinstance(step, dict) and "role" not in step and any(name in step for name in STEP) for step in steps)
    )


def as_messages(record: dict[str, Any]) -> tuple[list[dict[str, Any]], int]:
    """The run's messages, and how many at the start are a demonstration that the model did not generate."""
    history = record.get("history")
    if isinstance(history, list) and history and all(isinstance(turn, dict) and "role" in turn for turn in history):
        shown = max((i + 1 for i, turn in enumerate(history) if turn.get("is_demo")), default=0)
        return history, shown
    messages: list[dict[str, Any]] = []
    for step in record["trajectory"]:
        said = step.get("response") or "\n".join(filter(None, (step.get("thought"), step.get("action"))))
        messages += [{"role": "assistant", "content": said}, {"role": "user", "content": step.get("observation") or ""}]
    return messages, 0
