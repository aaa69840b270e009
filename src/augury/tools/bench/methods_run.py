"""Running the lines of `augury bench --methods`: engines side by side in one process, every step timed by part.

They are all ours, on the same kernels and threads, so unlike peers they need no processes of their own; from prompt to
prompt another engine runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

from augury.tools.bench.clock import PartClock, Steps
from augury.tools.bench.contenders import TOGETHER, Contender
from augury.tools.bench.methods_lines import PLAIN, MethodLine
from augury.tools.bench.peers import Ran, Tokens
from augury.tools.bench.rounds import Key, Measurements
from augury.tools.bench.worker import PeerError, machine_seconds

TARGET, DRAFTER, REST = "target", "drafter", "rest"  # of a step's time


@dataclass(slots=True)
class MethodRan(Ran):
    """One timed call, with the time of its decode steps by part and what was accepted at each depth."""

    steps: int = 0  # decode steps: without prefill
    step_tokens: int = 0  # emitted in those
    parts: dict[str, float] = field(default_factory=dict)  # seconds in those steps
    accepted_at: list[int] = field(default_factory=list)
    drafted_at: list[int] = field(default_factory=list)

    def add(self, other: MethodRan) -> None:
        """Add another call's counts and part times."""
        self.drafts += other.drafts
        self.drafted += other.drafted
        self.accepted += other.accepted
        self.steps += other.steps
        self.step_tokens += other.step_tokens
        self.parts = {part: self.parts.get(part, 0.0) + other.parts[part] for part in other.parts}
        self.accepted_at = [a + b for a, b in zip_longest(self.accepted_at, other.accepted_at, fillvalue=0)]
        self.drafted_at = [a + b for a, b in zip_longest(self.drafted_at, other.drafted_at, fillvalue=0)]


@dataclass(slots=True)
class MethodRecord(Measurements):
    """Totals by round, and the sums of all other figures."""

    sums: dict[Key, MethodRan] = field(default_factory=dict)

    def add(self, key: Key, round_number: int, group: list[int], ran: Ran) -> None:
        """Count a run."""
        Measurements.add(self, key, round_number, group, ran)
        assert isinstance(ran, MethodRan)
        self.sums.setdefault(key, MethodRan(0.0, [])).add(ran)


class MethodWorker:
    """One line's engine; used like a ContenderProcess."""

    def __init__(self, line: MethodLine, directory: Path, engine: dict[str, Any]) -> None:
        from augury.engine.llm import LLM

        self.contender = Contender(line.name, "torch", "", PLAIN, TOGETHER, line.method is not None)
        self._llm = LLM(str(directory), device="cpu", **engine)
        self._steps = clocked(self._llm.engine)

    def run(self, prompts: list[Tokens], max_tokens: int) -> Ran:
        """Answer the prompts as concurrent requests."""
        try:
            return self._run(prompts, max_tokens)
        except Exception as error:  # whatever it raises is one line of the report
            raise PeerError(f"{type(error).__name__}: {error}") from error

    def _run(self, prompts: list[Tokens], max_tokens: int) -> MethodRan:
        from augury.config.sampling import SamplingParams
        from augury.observe.stats import SpecStats

        engine, steps = self._llm.engine, self._steps
        params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
        self._llm.reset_prefix_cache()
        engine.stats.spec = spec = SpecStats()
        steps.decode, steps.tokens = [], 0
        machine, own, begun = machine_seconds(), time.process_time(), time.perf_counter()
        answers = self._llm.generate([{"prompt_token_ids": p} for p in prompts], params, use_tqdm=False)
        seconds = time.perf_counter() - begun
        foreign = max(0.0, machine_seconds() - machine - (time.process_time() - own))
        parts = {part: sum(step.get(part, 0.0) for step in steps.decode) for part in (TARGET, DRAFTER, REST)}
        return MethodRan(
            seconds,
            [answer.outputs[0].token_ids for answer in answers],
            spec.num_drafts,
            spec.num_draft_tokens,
            spec.num_accepted_tokens,
            foreign,
            len(steps.decode),
            steps.tokens,
            parts,
            list(spec.accepted_per_pos),
            list(spec.drafted_per_pos),
        )


def clocked(engine: Any) -> Steps:
    """Time every step of an engine by part (target, drafter, rest) for as long as the engine lives."""
    clock = PartClock()
    steps, timed = Steps(clock), clock.timed
    scheduler: Any = engine.scheduler
    wrapped: list[tuple[Any, str, Callable[..., Any]]] = [
        (engine, "step", steps.step(timed(REST, engine.step))),
        (scheduler, "plan", steps.plan(scheduler.plan)),
        (engine.target, "forward", timed(TARGET, engine.target.forward)),
    ]
    if engine.drafter is not None and engine.drafter.looks_up:
        wrapped.append((engine.runner, "look_up", timed(DRAFTER, engine.runner.look_up)))
    elif engine.drafter is not None:
        wrapped.append((engine.drafter, "propose", timed(DRAFTER, engine.drafter.propose)))
    for owner, name, call in wrapped:
        setattr(owner, name, call)
    return steps
