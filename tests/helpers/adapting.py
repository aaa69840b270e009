"""How fast "auto" follows a change of text or of load: `python tests/helpers/adapting.py [--spec JSON] [--plot PNG]`.

Answers of one kind follow answers of another in one engine, and then the same answers once more, now after their own
kind. Shown is how many tokens a request's draft has, step by step; what a change costs are the steps that the first
answers take more than the second.
"""

from __future__ import annotations

import argparse
import json
from itertools import cycle, islice
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

from never_slower import prompt_sets

from augury import LLM, SamplingParams
from augury.tools.shared.plots import INK, figure, save, tidy

WINDOW = 8  # steps of a moving mean


class Phase(NamedTuple):
    """Answers of one kind."""

    kind: str
    requests: int  # at once
    answers: int


PHASES = [
    Phase("chat", 1, 4),
    Phase("edit", 1, 6),
    Phase("edit", 1, 6),
    Phase("chat", 1, 4),
    Phase("chat", 1, 4),
    Phase("edit", 32, 64),
    Phase("edit", 1, 6),
]


def drafted(llm: LLM, phase: Phase, prompts: list[Any], tokens: int) -> list[float]:
    """Tokens in a request's draft, in every step of a phase that did nothing but decode."""
    engine, steps = llm.engine, []
    waiting = list(islice(cycle(prompts), phase.answers))[::-1]
    params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    while waiting or engine.busy:
        while waiting and len(engine.scheduler.running) + engine.scheduler.num_waiting < phase.requests:
            for request in llm._requests(str(len(waiting)), waiting.pop(), params):
                engine.add(request)
        engine.step()
        if engine.last.decoding_only and engine.last.requests:
            steps.append(sum(nodes for nodes, *_ in engine.last.drafts) / engine.last.requests)
    return steps


def moving(values: list[float], before: list[float]) -> list[float]:
    """Means of the last WINDOW values, those of the phase before included."""
    whole = [*before[-WINDOW:], *values]
    return [mean(whole[max(0, end - WINDOW) : end]) for end in range(len(whole) - len(values) + 1, len(whole) + 1)]


def draw(phases: list[tuple[Phase, list[float]]], path: Path, conditions: str) -> None:
    """Tokens in a draft by step, with the phases marked."""
    made, axes = figure(9.6, 3.4, 1, 1)
    axis, begin, before = axes.flat[0], 0, list[float]()
    for n, (phase, values) in enumerate(phases):
        axis.axvspan(begin, begin + len(values), color="#1b6ca8", alpha=0.09 * (n % 2), linewidth=0)
        axis.plot(range(begin, begin + len(values)), values, ".", markersize=2, color="#8a8f98")
        axis.plot(range(begin, begin + len(values)), moving(values, before), color="#1b6ca8", linewidth=1.6)
        words, middle = f"{phase.kind}\n{phase.requests} at once\n{len(values)} steps", begin + len(values) / 2
        above = {"transform": axis.get_xaxis_transform(), "ha": "center", "va": "bottom", "fontsize": 8, "color": INK}
        axis.text(middle, 1.01, words, **above)
        begin, before = begin + len(values), values
    tidy(axis, across="step", up="tokens in a request's draft")
    save(made, path, conditions + "; dots: steps, line: the mean of eight steps")


def main() -> None:
    """Run all phases, print and draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--spec", default='{"method": "ngram"}')
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--plot", type=Path)
    given = parser.parse_args()
    llm = LLM("default", speculative_config=json.loads(given.spec), max_model_len=1024, max_num_seqs=32)
    sets, phases = prompt_sets(llm, 1), []
    drafted(llm, Phase("chat", 1, 2), sets["chat"][0], given.tokens)  # to learn what passes cost
    for phase in PHASES:
        values = drafted(llm, phase, sets[phase.kind][0], given.tokens)
        phases.append((phase, values))
        each = mean(values)
        print(f"{phase.kind}, {phase.requests} at once: {len(values)} steps, {each:.2f} tokens a draft", flush=True)
    if given.plot:
        draw(phases, given.plot, f"SmolLM2-135M, {given.spec}, {given.tokens} new tokens an answer")


if __name__ == "__main__":
    main()
