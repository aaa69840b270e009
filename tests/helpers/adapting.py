"""How fast "auto" follows a change of text or of load: `python tests/helpers/adapting.py [--spec JSON] [--plot PNG]`.

Answers of one kind follow answers of another, at one request and at many, in one engine. Shown is how many tokens a
request's draft has, step by step; a change counts as followed once the mean of eight steps has come within a quarter
(or half a token) of what it is over the second half of its phase.
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
    Phase("chat", 1, 4),
    Phase("edit", 1, 6),
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


def moving(values: list[float]) -> list[float]:
    """Means of the last WINDOW values, fewer at the start."""
    return [mean(values[max(0, i + 1 - WINDOW) : i + 1]) for i in range(len(values))]


def followed(values: list[float]) -> int:
    """Steps until the moving mean has come to where it is over the second half."""
    settled = mean(values[len(values) // 2 :])
    near = max(settled / 4, 0.5)
    return next(i for i, value in enumerate(moving(values)) if abs(value - settled) <= near)


def draw(phases: list[tuple[Phase, list[float]]], path: Path, conditions: str) -> None:
    """Tokens in a draft by step, with the phases marked."""
    made, axes = figure(9.6, 3.4, 1, 1)
    axis, begin = axes.flat[0], 0
    for n, (phase, values) in enumerate(phases):
        axis.axvspan(begin, begin + len(values), color="#1b6ca8", alpha=0.09 * (n % 2), linewidth=0)
        axis.plot(range(begin, begin + len(values)), values, ".", markersize=2, color="#8a8f98")
        axis.plot(range(begin, begin + len(values)), moving(values), color="#1b6ca8", linewidth=1.6)
        words = f"{phase.kind}, {phase.requests}\nfollowed in {followed(values)}"
        axis.text(begin + len(values) / 2, axis.get_ylim()[1], words, ha="center", va="bottom", fontsize=8, color=INK)
        begin += len(values)
    axis.set_xlabel("step", color=INK)
    tidy(axis, "")
    save(made, path, conditions, "Tokens in a request's draft: each step, and the mean of eight\n")


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
        settled = mean(values[len(values) // 2 :])
        print(
            f"{phase.kind}, {phase.requests} at once: {len(values)} steps, {settled:.2f} tokens a draft in the second "
            f"half, followed in {followed(values)} steps",
            flush=True,
        )
    if given.plot:
        draw(phases, given.plot, f"SmolLM2-135M, {given.spec}, {given.tokens} new tokens an answer")


if __name__ == "__main__":
    main()
