"""The seam to a drafter that keeps something of every request: hidden states, for now."""

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
    blocks: list[int]  # its cache, row after row
    finish_reason: str | None


class Saver(Protocol):
    """Writes something at the end of a request, and says where."""

    def connect(self, storage: HiddenStatesStorage) -> None:
        """Say where to; called once, before any request."""
        ...

    def check(self, params: SamplingParams) -> None:
        """Raise a ConfigError for a request that asks for what it may not have."""
        ...

    def finish(self, request: Ended) -> None:
        """A request ends; its blocks are its own until this returns."""
        ...

    def saved(self, request: Ended) -> dict[str, Any] | None:
        """What the output's `kv_transfer_params` says of an ended request; waits until that is true."""
        ...
