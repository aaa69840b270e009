"""The orders that rank 0 sends to the other ranks, and how they carry them out.

Rank 0 schedules, reads and writes text, and talks to clients. The others have their own slots, weights, and drafters
with weights: each pass of rank 0 is a pass of theirs, on the same integers. Changes to slots between two passes are
noted and sent with the next pass, in the order in which they happened: one message a step.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from augury.config.sampling import SamplingParams
from augury.engine.edits import LogitEdits
from augury.engine.request import Request
from augury.parallel.ranks import Ranks

if TYPE_CHECKING:
    from augury.engine.state import SlotState

CLOSE = "close"
NUMBERS = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "min_tokens",
)


class Leader:
    """Rank 0's side of a divided engine."""

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self._noted: list[list[Any]] = []

    def note(self, order: str, *what: Any) -> None:
        """Note an order that the others carry out before the next pass."""
        self._noted.append([order, *what])

    @contextmanager
    def together(self, order: str, *what: Any) -> Iterator[None]:
        """Send an order that the others carry out now, while rank 0 does the same in the context."""
        self.note(order, *what)
        noted, self._noted = self._noted, []
        self.ranks.tell(noted)
        with self.ranks.together():
            yield

    def close(self) -> None:
        """Tell the other ranks that the engine is closed."""
        self._noted.clear()
        self.ranks.tell([[CLOSE]])


def seat_record(request: Request) -> dict[str, Any]:
    """The fields of a request that are written to its slot, as plain data for other ranks."""
    edits = request.edits
    return {
        "slot": request.slot,
        "tokens": request.tokens,
        "prompt_len": request.prompt_len,
        "max_len": request.max_len,
        "seed": request.seed,
        "stop_ids": sorted(request.stop_ids),
        "params": {name: getattr(request.params, name) for name in NUMBERS},
        "allowed": None if edits.allowed is None else edits.allowed.tolist(),
        "biased": edits.biased.tolist(),
        "bias": edits.bias.tolist(),
        "words": edits.words.tolist(),
    }


def seat(state: SlotState, record: dict[str, Any]) -> None:
    """Write a request to its slot, as rank 0 did."""
    allowed, words = record["allowed"], np.array(record["words"], np.int64)
    edits = LogitEdits(
        None if allowed is None else np.array(allowed, np.int64),
        np.array(record["biased"], np.int64),
        np.array(record["bias"], np.float32),
        words if words.ndim == 2 else np.zeros((0, 0), np.int64),
    )
    request = Request(
        id="",
        arrival=0,
        prompt_len=record["prompt_len"],
        tokens=record["tokens"],
        params=SamplingParams(**record["params"]),
        seed=record["seed"],
        stop_ids=frozenset(record["stop_ids"]),
        max_len=record["max_len"],
        text=None,
        edits=edits,
        slot=record["slot"],
    )
    state.seat(request)


def write_drafts(state: SlotState, slots: list[int], tokens: Any, parents: Any, counts: list[int]) -> None:
    """Write drafts that rank 0's host has made to their slots."""
    at, pending = torch.tensor(slots, device=state.limit.device), state.draft
    guessed, hung = torch.tensor(tokens, device=at.device), torch.tensor(parents, device=at.device)
    if guessed.numel():
        width = guessed.shape[1]
        pending.tokens[:, :width][at], pending.parents[:, :width][at] = guessed, hung
    pending.count[at] = torch.tensor(counts, device=at.device)
