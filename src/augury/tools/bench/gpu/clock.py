"""Where a step's time goes: two spans on the device, and what is left of the wall clock."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from augury.engine.flight import Flight
from augury.tools.bench.gpu.rig import Rig

if TYPE_CHECKING:
    from augury.engine.engine import Engine


class Beat(NamedTuple):
    """One decode step, in milliseconds."""

    wall: float
    whole: float  # the pass on the device, from start to end
    target: float  # of which layout and the target's forward pass
    waited: float  # by the host, for the device


class Stamp:
    """A time stamp on the device's clock, or on the host's if the device is the CPU."""

    def __init__(self, cuda: bool, inside: bool = False) -> None:
        # `inside` a captured graph an event must be external, or the graph leaves it out.
        self._event: Any = torch.cuda.Event(enable_timing=True, external=inside) if cuda else None
        self._at = 0.0

    def record(self) -> None:
        """Take the stamp now."""
        if self._event is not None:
            self._event.record()
        self._at = time.perf_counter()

    def until(self, other: Stamp) -> float:
        """Milliseconds to a later stamp, once both have passed on the device; below 0: that one is older or unset."""
        if not other._at:
            return -1.0
        if self._event is not None:
            return float(self._event.elapsed_time(other._event))
        return 1000 * (other._at - self._at)


class Marks:
    """Stamps around the parts of a forward pass; the middle one is captured into every later CUDA graph."""

    def __init__(self, engine: Engine) -> None:
        self._cuda = engine.target.device.type == "cuda"
        self.begin, self.middle, self.end = Stamp(self._cuda), Stamp(self._cuda, inside=True), Stamp(self._cuda)
        runner = engine.runner
        judge = runner.judge

        def marked(function: Any) -> Any:
            def call(*given: Any, **named: Any) -> Any:
                self.middle.record()
                return function(*given, **named)

            return call

        draw = None if judge.draw is None else marked(judge.draw)
        runner.judge = judge._replace(decide=marked(judge.decide), draw=draw)
        if runner.captured is not None:
            runner.captured.forget()  # graphs captured earlier have no stamp in them

    @contextmanager
    def watching(self, engine: Engine) -> Iterator[list[float]]:
        """Stamp every step in the block, with one step in flight; yields the milliseconds the host waited in each."""
        run, commit, depth, waited = engine.runner.run, engine.commit, engine.depth, list[float]()

        def begin(*given: Any, **named: Any) -> Any:
            self.begin.record()
            return run(*given, **named)

        def end(*given: Any, **named: Any) -> Any:
            self.end.record()
            before = time.perf_counter()
            if self._cuda:
                torch.cuda.synchronize()
            waited.append(1000 * (time.perf_counter() - before))
            return commit(*given, **named)

        engine.runner.run, engine.commit, engine.depth = begin, end, 0  # type: ignore[method-assign]
        try:
            yield waited
        finally:
            del engine.runner.run, engine.commit
            engine.depth = depth


def beats(rig: Rig, marks: Marks, steps: int) -> list[Beat]:
    """Time up to `steps` decode steps of the queued requests; steps with prefill are left out."""
    engine, found = rig.engine, list[Beat]()
    while engine.flights:
        engine.land()
    with marks.watching(engine) as waited:
        while engine.busy and len(found) < steps:
            rig.wait()
            waited.clear()
            before = time.perf_counter()
            engine.step()
            wall = 1000 * (time.perf_counter() - before)
            if waited and engine.last.decoding_only:
                found.append(Beat(wall, marks.begin.until(marks.end), marks.begin.until(marks.middle), waited[0]))
    return found


def idle_of(rig: Rig, steps: int) -> dict[str, float] | None:
    """Idle time of the device between two passes in ordinary decoding; None on a CPU, or without such steps."""
    engine, marks, waited = rig.engine, list[tuple[Stamp, Stamp]](), list[float]()
    if rig.engine.target.device.type != "cuda":
        return None
    while engine.busy and not (engine.flights and all(item.steady for item in engine.flights[-1].scheduled)):
        engine.step()  # prefill comes first
    run, land = engine.runner.run, Flight.land

    def marked(step_input: Any) -> Any:
        marks.append((Stamp(True), Stamp(True)))
        marks[-1][0].record()
        output = run(step_input)
        marks[-1][1].record()
        return output

    def timed(flight: Flight) -> Any:
        before = time.perf_counter()
        report = land(flight)
        waited.append(time.perf_counter() - before)
        return report

    engine.runner.run, Flight.land = marked, timed  # type: ignore[method-assign,assignment]
    begun = time.perf_counter()
    try:
        while engine.busy and len(marks) < steps:
            engine.step()
        seconds = time.perf_counter() - begun
    finally:
        del engine.runner.run
        Flight.land = land  # type: ignore[method-assign]
    rig.wait()
    idle = sorted(1000 * before[1].until(after[0]) for before, after in pairwise(marks))
    if len(idle) < 2:
        return None
    middle, high = idle[len(idle) // 2], idle[min(len(idle) - 1, int(0.99 * len(idle)))]
    return {"steps": len(idle), "p50_us": middle, "p99_us": high, "host_busy": 1 - sum(waited) / seconds}


def split_of(found: list[Beat]) -> dict[str, float | None] | None:
    """The mean step by part; the first is left out, since its shape may be new."""
    found = found[1:] or found
    if not found:
        return None
    wall, whole, target, waited = (fmean(beat[i] for beat in found) for i in range(4))
    told = 0 <= target <= whole  # else the middle stamp is not part of the pass that ran
    return {
        "steps": len(found),
        "wall_ms": wall,
        "pass_ms": whole,
        "layout_target_ms": target if told else None,
        "verify_draft_ms": whole - target if told else None,
        "gap_ms": max(0.0, wall - whole),
        "host_busy": 1 - waited / wall if wall else 0.0,
    }
