"""Where the time of a step goes: functions are wrapped in timers while it is measured, and untouched otherwise."""

from __future__ import annotations

import functools
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from augury.engine.engine import Engine
    from augury.engine.scheduled import ScheduledRequest

# What the target cannot do without; everything else is overhead.
MATRICES, HEAD, ATTENTION = "layer matrices", "head", "attention"
LAYERS = "layers in one call"  # of packed matrices on a CPU
CORE = (LAYERS, MATRICES, HEAD, ATTENTION)
OTHER = "rest of the step"
LAYER_STEPS = (MATRICES, ATTENTION, "norms", "rotary and cache write", "activation")  # what one call consists of
# In the order of a step.
PARTS = (
    LAYERS,
    MATRICES,
    HEAD,
    ATTENTION,
    "plan",
    "prepare",
    "layout",
    "norms",
    "rotary and cache write",
    "activation",
    "rest of the model",
    "verdict",
    "append",
    "propose",
    "commit",
    "text",
    OTHER,
)

# Operations of kernels/, each with its part; None: the head, or a matrix of a layer.
KERNELS: dict[str, str | None] = {
    "linear": None,
    "packed_linear": None,
    "rms_norm": "norms",
    "add_rms_norm": "norms",
    "silu_mul": "activation",
    "rotate_and_store": "rotary and cache write",
    "store": "rotary and cache write",
    # The rest of the fused operation: its attention is timed on its own.
    "rotate_store_attend": "rotary and cache write",
    "attend": ATTENTION,
    "_attend": ATTENTION,
}


class PartClock:
    """Time by part, each moment counted once: while a wrapped function calls another, only the inner one is charged."""

    def __init__(self) -> None:
        self.spent: defaultdict[str, float] = defaultdict(float)  # seconds by part
        self._stack: list[str] = []
        self._since = 0.0

    def timed(self, part: str | Callable[..., str], call: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a function so that its time counts towards a part; `part` may be a function of the call's arguments."""

        @functools.wraps(call)
        def run(*args: Any, **kwargs: Any) -> Any:
            self._book()
            self._stack.append(part if isinstance(part, str) else part(*args, **kwargs))
            try:
                return call(*args, **kwargs)
            finally:
                self._book()
                self._stack.pop()

        return run

    def _book(self) -> None:
        now = time.perf_counter()
        if self._stack:
            self.spent[self._stack[-1]] += now - self._since
        self._since = now


class Steps:
    """Decode steps, each with its time by part; steps with prefill are only summed up."""

    def __init__(self, clock: PartClock) -> None:
        self.decode: list[dict[str, float]] = []  # seconds by part
        self.tokens = 0  # emitted in those steps
        self.read_seconds = 0.0  # in steps with prefill
        self.read_tokens = 0  # prompt tokens in those
        self._clock = clock
        self._shares: list[ScheduledRequest] = []

    def plan(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap the scheduler's plan, to see what kind of step it makes."""

        def run() -> Any:
            self._shares = call()
            return self._shares

        return run

    def step(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap the engine's step, to record each one's time by part."""

        def run() -> Any:
            self._clock.spent.clear()
            updates = call()
            reading = sum(s.num_new_tokens for s in self._shares if s.start < s.request.prompt_len)
            if reading:
                self.read_seconds += sum(self._clock.spent.values())
                self.read_tokens += reading
            elif self._shares:
                self.decode.append(dict(self._clock.spent))
                self.tokens += sum(len(update.tokens) for update in updates)
            return updates

        return run


@contextmanager
def watched(engine: Engine) -> Iterator[Steps]:
    """Time every step of an engine by part while the block runs."""
    clock = PartClock()
    steps = Steps(clock)
    with ExitStack() as undo:
        for owner, name, changed in _timed_functions(engine, steps, clock.timed):
            undo.enter_context(_replaced(owner, name, changed))
        yield steps


def _timed_functions(engine: Engine, steps: Steps, timed: Callable[..., Any]) -> list[tuple[Any, str, Any]]:
    """Every timed function: its owner, its name, and its replacement."""
    from augury.engine import advance
    from augury.engine.request import Request
    from augury.engine.rows import lay_out
    from augury.engine.state import SlotState
    from augury.kernels import choose
    from augury.kernels.faces import face

    def matrix(_x: Any, weight: Any, *_rest: Any) -> str:
        return HEAD if len(weight) == engine.target.vocab_size else MATRICES

    ops = choose(engine.target.device)
    kernels = {name: part or matrix for name, part in KERNELS.items() if hasattr(ops, name)}
    scheduler, runner, target = engine.scheduler, engine.runner, engine.target
    changes: list[tuple[Any, str, Any]] = [
        (engine, "step", steps.step(timed(OTHER, engine.step))),
        (scheduler, "plan", timed("plan", steps.plan(scheduler.plan))),
        (runner, "prepare", timed("prepare", runner.prepare)),
        (advance, "lay_out", timed("layout", lay_out)),
        (target, "forward", timed("rest of the model", target.forward)),
        (runner, "judge", runner.judge._replace(decide=timed("verdict", runner.judge.decide))),
        (SlotState, "append", timed("append", SlotState.append)),
        (runner, "_draft", timed("propose", runner._draft)),
        (runner, "look_up", timed("propose", runner.look_up)),
        (engine, "commit", timed("commit", engine.commit)),
        (Request, "accept", timed("text", Request.accept)),
        *((ops, name, timed(part, getattr(ops, name))) for name, part in kernels.items()),
    ]
    if face(target.device) == "numba":
        from augury.kernels.fused_layer import FusedLayers

        changes.append((FusedLayers, "run", timed(LAYERS, FusedLayers.run)))
    return changes


@contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Replace an attribute while the block runs; a class attribute shadowed meanwhile is visible again afterwards."""
    own = vars(owner).get(name) if hasattr(owner, "__dict__") else None
    setattr(owner, name, value)
    try:
        yield
    finally:
        if own is None:
            delattr(owner, name)
        else:
            setattr(owner, name, own)
