"""Engines of one process that answer the same prompts in turns of one step.

On a CPU that others use, too, speeds differ by a tenth from one minute to the next. Engines that take turns see the
same moments: two of the same kind differ by one percent over a dozen answers.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from augury import LLM, SamplingParams
from augury.observe.collection import set_aside

CLOCKS = {"wall": time.perf_counter, "processor": time.process_time}


class Contender:
    """One engine in a race: it is timed while it steps, and told nothing of the time that others take."""

    def __init__(self, llm: LLM, clock: Callable[[], float]) -> None:
        self.engine, self.llm, self.clock = llm.engine, llm, clock
        self.seconds, self.left = 0.0, 0.0

    def begin(self, prompts: list[Any], temperature: float, tokens: int) -> None:
        """Queue the prompts."""
        self.llm.reset_prefix_cache()
        self.seconds = 0.0
        for i, prompt in enumerate(prompts):
            params = SamplingParams(temperature=temperature, seed=i, max_tokens=tokens, ignore_eos=True)
            for request in self.llm._requests(str(i), prompt, params):
                self.engine.add(request)

    def step(self) -> None:
        """One step; to the engine it follows its last one at once."""
        if self.engine._landed:
            self.engine._landed += time.perf_counter() - self.left
        begun = self.clock()
        self.engine.step()
        self.seconds += self.clock() - begun
        self.left = time.perf_counter()


def race(made: dict[str, Contender], prompts: list[Any], temperature: float, tokens: int) -> dict[str, float]:
    """Seconds that each contender takes for the same prompts.

    A GPU runs one engine's pass while another engine waits for its own, so there each answers all prompts by itself.
    A collection of everything in the process takes a third of a second, and would count against whoever it meets.
    """
    with set_aside():
        for contender in made.values():
            contender.begin(prompts, temperature, tokens)
            while contender.engine.runner.on_gpu and contender.engine.busy:
                contender.step()
        while busy := [contender for contender in made.values() if contender.engine.busy]:
            min(busy, key=lambda contender: contender.seconds).step()
    return {who: contender.seconds for who, contender in made.items()}


def window(prompts: list[Any], turn: int, streams: int) -> list[Any]:
    """Other prompts every round, as far as there are any."""
    first = turn * streams % len(prompts)
    return (prompts * 2)[first : first + streams]
