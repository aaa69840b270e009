"""As much of vLLM as our classes stand on, put where `import` finds it: for tests without vLLM."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest


class Scheduler:
    """Keeps what it is given, and takes every call."""

    def __init__(self, async_scheduling: bool, per_step: int = 1) -> None:
        self.scheduler_config = SimpleNamespace(async_scheduling=async_scheduling)
        self.num_spec_tokens, self.num_sampled_tokens_per_step = 3, per_step
        self.requests: dict[str, Any] = {}

    def update_draft_token_ids(self, drafts: Any) -> None:
        """Nothing."""

    def _update_after_schedule(self, output: Any) -> None:
        """Nothing."""

    def update_from_output(self, output: Any, ran: Any) -> str:
        """What was asked for."""
        return "theirs"


class AsyncScheduler(Scheduler):
    """The same."""


def put(monkeypatch: pytest.MonkeyPatch, version: str = "0.30.0") -> ModuleType:
    """Modules of a release, until the test ends; the top one comes back."""
    top = ModuleType("vllm")
    parts: dict[str, dict[str, Any]] = {
        "vllm.v1": {},
        "vllm.v1.core": {},
        "vllm.v1.core.sched": {},
        "vllm.v1.metrics": {},
        "vllm.v1.core.sched.scheduler": {"Scheduler": Scheduler},
        "vllm.v1.core.sched.async_scheduler": {"AsyncScheduler": AsyncScheduler},
        "vllm.v1.metrics.loggers": {"StatLoggerBase": object},
    }
    top.__version__ = version  # type: ignore[attr-defined]
    for name, holds in {"vllm": {}, **parts}.items():
        module = top if name == "vllm" else ModuleType(name)
        module.__path__ = []
        vars(module).update(holds)
        monkeypatch.setitem(sys.modules, name, module)
    for ours in ("budget", "stats"):
        monkeypatch.delitem(sys.modules, f"augury.plugins.vllm.{ours}", raising=False)
    return top
