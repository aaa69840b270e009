"""CUDA graphs of decode passes: captured once for each shape, replayed ever after."""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch

from augury.engine.advance import Passed
from augury.engine.rows import Shape

logger = logging.getLogger("augury")


class _Recording(NamedTuple):
    graph: torch.cuda.CUDAGraph
    segments: torch.Tensor  # where the graph reads its segments from
    passed: Passed  # where it leaves its results


class Captured:
    """Replays `run(work)`; all it reads besides the segments is slot state and weights that stay where they are."""

    def __init__(self, run: Callable[[Any], Passed], padding_slot: int) -> None:
        self._run, self._padding_slot = run, padding_slot
        self._recordings: dict[Shape, _Recording] = {}
        self._pool: Any = None  # one for all graphs: only one of them runs at a time
        self._version = 0
        self.replays = 0
        self.seconds = 0.0  # spent on capturing

    @property
    def graphs(self) -> int:
        """How many there are."""
        return len(self._recordings)

    def fill(self, works: Iterable[Any], version: int, budget: int) -> None:
        """Capture these, the largest first so that others find their memory free, while they take `budget` bytes."""
        self._version = version
        free, _ = torch.cuda.mem_get_info()
        for work in works:
            if free - torch.cuda.mem_get_info()[0] > budget:
                warning = "CUDA graphs take %.1f GiB; the smaller ones are captured when they are needed."
                logger.warning(warning, budget / 2**30)
                break
            self._recording(work)
        taken = (free - torch.cuda.mem_get_info()[0]) / 2**30
        logger.info("captured %d CUDA graphs in %.1f s; they take %.2f GiB.", self.graphs, self.seconds, taken)

    def __call__(self, work: Any, version: int) -> Passed:
        """Replay the graph of this shape, capturing it first if it is new; another `version` outdates all graphs."""
        if version != self._version:
            self.forget()
            self._version = version
        recording = self._recording(work)
        recording.segments.copy_(work.segments)
        recording.graph.replay()
        self.replays += 1
        return recording.passed

    def forget(self) -> None:
        """Drop all graphs, and with them their memory."""
        self._recordings.clear()
        self._pool = None

    def _recording(self, work: Any) -> _Recording:
        if work.shape not in self._recordings:
            begun = time.perf_counter()
            self._recordings[work.shape] = self._capture(work)
            self.seconds += time.perf_counter() - begun
        return self._recordings[work.shape]

    def _capture(self, work: Any) -> _Recording:
        # Lines past those in use are padding on the device too, so the graph serves every count up to the bucket's.
        static = work._replace(segments=work.segments.cuda(), lines=work.shape.lines)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._run(self._harmless(static))  # warm up: kernels load and workspaces are made outside the graph
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        if not self._recordings:  # a graph that another engine left behind must not be freed in the midst of a capture
            gc.collect()
        gc.disable()
        try:
            with torch.cuda.graph(graph, pool=self._pool):
                passed = self._run(static)
            self._pool = graph.pool()
        finally:
            gc.enable()
        return _Recording(graph, static.segments, passed)

    def _harmless(self, work: Any) -> Any:
        """The same shape with only padding in it, so that warming up changes no request."""
        blank = torch.zeros_like(work.segments)
        blank[0] = self._padding_slot
        return work._replace(segments=blank)
