"""CUDA graphs of decode passes: captured once for each shape, then replayed.

A pass is two graphs, because grammar masks may come from the host after the target has begun to run.
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch

from augury.engine.advance import ScoredPass, StepOutput
from augury.engine.rows import StepShape
from augury.kernels.tuned_cublas import tuning
from augury.methods.spec import MAX_NODES

logger = logging.getLogger("augury")


class FirstHalf(NamedTuple):
    """The target's part of one shape."""

    score: torch.cuda.CUDAGraph
    step_input: Any  # where it reads its segments from
    scored: ScoredPass  # where it leaves its results


class Recording(NamedTuple):
    """The captured graphs of one shape."""

    score: torch.cuda.CUDAGraph
    decide: torch.cuda.CUDAGraph
    segments: torch.Tensor  # where the first reads its segments from
    output: StepOutput  # where the second leaves its results


class Captured:
    """Replays `decide(step_input, score(step_input))`; besides the segments it reads only slot state and weights, which
    never move."""

    def __init__(
        self, score: Callable[[Any], ScoredPass], decide: Callable[[Any, ScoredPass], StepOutput], padding_slot: int
    ) -> None:
        self._score, self._decide, self._padding_slot = score, decide, padding_slot
        self._recordings: dict[StepShape, Recording] = {}
        self._first_halves: dict[StepShape, FirstHalf] = {}  # shared by passes that differ only in draft depth
        self._pool: Any = None  # one for all graphs: only one of them runs at a time
        self._version = 0
        self.replays = 0
        self.seconds = 0.0  # spent on capturing

    @property
    def graphs(self) -> int:
        """Number of captured graphs."""
        return len(self._recordings)

    def record(self, step_input: Any, version: int) -> None:
        """Capture a graph ahead of its use."""
        self._version = version
        self._recording(step_input, ahead=True)

    def fill(self, step_inputs: Iterable[Any], record: Callable[[Any], None], budget: int) -> None:
        """Record these, the largest first so that later ones reuse their memory, until they take `budget` bytes."""
        free, _ = torch.cuda.mem_get_info()
        for step_input in step_inputs:
            if free - torch.cuda.mem_get_info()[0] > budget:
                warning = "CUDA graphs take %.1f GiB; the smaller ones are captured when they are needed."
                logger.warning(warning, budget / 2**30)
                break
            record(step_input)
        taken = (free - torch.cuda.mem_get_info()[0]) / 2**30
        logger.info("captured %d CUDA graphs in %.1f s; they take %.2f GiB.", self.graphs, self.seconds, taken)

    def __call__(self, step_input: Any, version: int) -> StepOutput:
        """Replay a pass of this shape, capturing it first if it is new; a new `version` invalidates all graphs."""
        return self.finish(self.begin(step_input, version))

    def begin(self, step_input: Any, version: int) -> Recording:
        """Replay the first half of a pass."""
        if version != self._version:
            self.forget()
            self._version = version
        recording = self._recording(step_input)
        recording.segments.copy_(step_input.segments, non_blocking=True)
        recording.score.replay()
        return recording

    def finish(self, recording: Recording) -> StepOutput:
        """Replay the second half."""
        recording.decide.replay()
        self.replays += 1
        return recording.output

    def forget(self) -> None:
        """Drop all graphs, and with them their memory."""
        self._recordings.clear()
        self._first_halves.clear()
        self._pool = None

    def _recording(self, step_input: Any, ahead: bool = False) -> Recording:
        if step_input.shape not in self._recordings:
            begun = time.perf_counter()
            self._recordings[step_input.shape] = self._capture(step_input, ahead)
            self.seconds += time.perf_counter() - begun
        return self._recordings[step_input.shape]

    def _capture(self, step_input: Any, ahead: bool) -> Recording:
        # Lines past those in use are padding on the device too, so the graph serves every count up to the bucket's.
        whole = step_input.shape._replace(draft_depth=MAX_NODES)
        known = self._first_halves.get(whole)
        segments = step_input.segments.cuda() if known is None else known.step_input.segments
        static = step_input._replace(segments=segments, logits_rows=step_input.shape.logits_rows)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream), tuning(segments.device) if ahead else nullcontext():  # nobody waits for it
            blank = self._harmless(static)  # warm up: kernels load and workspaces are made outside the graph
            self._decide(blank, self._score(blank))
        torch.cuda.current_stream().wait_stream(stream)
        decide = torch.cuda.CUDAGraph()
        if not self._recordings:  # a graph that another engine has left must not be freed during a capture
            gc.collect()
        gc.disable()
        try:
            if known is None:
                known = self._first_halves[whole] = self._first_half(static)
            with torch.cuda.graph(decide, pool=self._pool):
                output = self._decide(static, known.scored)
        finally:
            gc.enable()
        return Recording(known.score, decide, static.segments, output)

    def _first_half(self, static: Any) -> FirstHalf:
        score = torch.cuda.CUDAGraph()
        with torch.cuda.graph(score, pool=self._pool):
            scored = self._score(static)
        self._pool = score.pool()
        return FirstHalf(score, static, scored)

    def _harmless(self, step_input: Any) -> Any:
        """The same shape with only padding in it, so that warming up changes no request."""
        blank = torch.zeros_like(step_input.segments)
        blank[0] = self._padding_slot
        return step_input._replace(segments=blank)
