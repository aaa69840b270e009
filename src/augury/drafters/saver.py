"""The interface of a drafter that saves something of every request: hidden states, for now."""

from __future__ import annotations

from typing import Any, Protocol

from augury.config.sampling import SamplingParams
from augury.config.transfer import HiddenStatesStorage


class Ended(Protocol):
    """What is read of a request when it ends."""

    id: str
    tokens: list[int]
    prompt_len: int
    params: SamplingParams
    blocks: list[int]  # its cache blocks, in order
    finish_reason: str | None


class Saver(Protocol):
    """Writes something at the end of a request, and reports where."""

    def connect(self, storage: HiddenStatesStorage) -> None:
        """Set where to save; called once, before any request."""
        ...

    def check(self, params: SamplingParams) -> None:
        """Raise a ConfigError for a request that asks for something it may not."""
        ...

    def finish(self, request: Ended) -> None:
        """Save what is kept of a request that ends; its blocks are its own until this returns."""
        ...

    def saved(self, request: Ended) -> dict[str, Any] | None:
        """The output's `kv_transfer_params` for an ended request; waits until what it names is written."""
        ...
