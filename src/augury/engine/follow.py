"""The other ranks' side of an engine: they carry out rank 0's orders, pass by pass."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from augury.engine.masks import rewrite
from augury.engine.mirror import CLOSE, seat, write_drafts
from augury.engine.predict import leave
from augury.engine.runner import Runner
from augury.engine.step_input import unpacked
from augury.parallel.ranks import Ranks


class RankFollower:
    """Runs the same passes as rank 0, on another rank."""

    def __init__(self, runner: Runner, ranks: Ranks) -> None:
        self.runner, self.ranks = runner, ranks
        self.state, self.drafter = runner.state, runner.drafter

    @torch.inference_mode()
    def run(self) -> None:
        """Follow rank 0 until it closes the engine."""
        while True:
            for order, *what in self.ranks.hear():
                if order == CLOSE:
                    return
                getattr(self, f"do_{order}")(*what)

    def do_seat(self, record: dict[str, Any]) -> None:
        """Write a request to its slot, for the first time or again."""
        seat(self.state, record)

    def do_admit(self, slot: int, prompt_len: int, cached: int, tenant: str, request: str) -> None:
        """Tell the drafter of a new request."""
        self.runner.introduce(slot, prompt_len, cached, tenant, request)

    def do_blocks(self, fresh: list[list[int]]) -> None:
        """Write new blocks into the block tables."""
        self.state.write_blocks(fresh)

    def do_run(self, *packed: Any) -> None:
        """Run a pass."""
        with self.ranks.together():
            self.runner.run(unpacked(packed, self.runner.target.device))

    def do_advance(self, *packed: Any) -> None:
        """Run a pass that is not replayed from a graph."""
        with self.ranks.together():
            self.runner.advance(unpacked(packed, self.runner.target.device))

    def do_record(self, *packed: Any) -> None:
        """Capture a graph."""
        assert self.runner.captured is not None
        with self.ranks.together():
            self.runner.captured.record(unpacked(packed, self.runner.target.device), self.state.version)

    def do_drafts(self, slots: list[int], tokens: Any, parents: Any, counts: list[int]) -> None:
        """Write the drafts that a drafter on rank 0's host has made."""
        write_drafts(self.state, slots, tokens, parents, counts)

    def do_expect(self, guesses: list[int], slot: int) -> None:
        """Replace a slot's draft by tokens of the text that its client predicts."""
        leave(guesses, slot, self.state)

    def do_rewrite(self, slot: int, kept: list[int], tokens: list[int], parents: list[int], bits: Any) -> None:
        """Remove the nodes that a grammar forbids from a draft."""
        rewrite(self.state, slot, kept, tokens, parents, None if bits is None else np.array(bits, np.int32))

    def do_discard(self, slot: int, length: int) -> None:
        """Discard a draft."""
        if self.drafter is not None:
            self.drafter.discard(slot, length)

    def do_leave(self, slot: int) -> None:
        """Free a request's slot."""
        self.runner.leave(slot)
        if self.drafter is not None:
            self.drafter.reset(slot)

    def do_rest(self) -> None:
        """Let the drafter rest, that is, skip its forward passes while no request drafts."""
        if self.drafter is not None:
            self.runner.let_rest()
