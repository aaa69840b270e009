"""What a client's `prediction` saves on edits, and what a wrong one costs: plain, expected and wrong in turn.

python -m augury.tools.bench.prediction [ROUNDS] [TOKENS] [EDITS]
"""

from __future__ import annotations

import statistics
import sys
import time
from typing import Any

from augury.config.sampling import SamplingParams
from augury.engine.llm import LLM
from augury.tools.shared.prompts import SETS


class EditsRun:
    """Edits of the built-in set, one request at a time, greedy."""

    def __init__(self, llm: LLM, count: int, tokens: int) -> None:
        self.llm, self.tokens = llm, tokens
        edits = SETS["edit"][:count]
        self.prompts = [llm.tokenizer.chat(edit.messages(), **edit.template_options()) for edit in edits]
        texts = [edit.user.rpartition("\n\n")[0] for edit in edits]  # the text to edit, which precedes the instruction
        self.ways: dict[str, list[dict[str, Any] | None]] = {
            "plain": [None] * len(edits),
            "expected": [{"prediction": {"type": "content", "content": text}} for text in texts],
            "wrong": [{"prediction": text} for text in texts[1:] + texts[:1]],  # another edit's text
        }

    def run(self, way: str) -> tuple[float, int, list[list[int]]]:
        """Seconds and engine steps for all edits, and the answers."""
        self.llm.engine.stats.by_drafter.clear()
        before, begun, answers = self.llm.engine.stats.steps, time.perf_counter(), []
        for prompt, extra in zip(self.prompts, self.ways[way], strict=True):
            params = SamplingParams(temperature=0, max_tokens=self.tokens, ignore_eos=True, extra_args=extra)
            answers.append(self.llm.generate(prompt, params, use_tqdm=False)[0].outputs[0].token_ids)
        return time.perf_counter() - begun, self.llm.engine.stats.steps - before, answers


def main(rounds: int = 3, tokens: int = 96, edits: int = 4) -> None:
    """Race the three ways, and print what each one takes."""
    race = EditsRun(LLM("default", max_model_len=1024), edits, tokens)
    _, _, want = race.run("plain")  # and the prompts are in the prefix cache
    runs: dict[str, list[tuple[float, int]]] = {way: [] for way in race.ways}
    guessed: dict[str, tuple[int, int]] = {}
    for _ in range(rounds):
        for way, figures in runs.items():
            seconds, passes, answers = race.run(way)
            assert answers == want, "a prediction changes no token"
            figures.append((seconds, passes))
            guessed[way] = race.llm.engine.stats.by_drafter.get("prediction", (0, 0))
    for way, figures in runs.items():
        ratios = [base / seconds for (base, _), (seconds, _) in zip(runs["plain"], figures, strict=True)]
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
        took = f"{figures[0][1]} passes, {guessed[way][0]} guessed, {guessed[way][1]} accepted"
        print(f"{way:9} {took}, {statistics.median(ratios):.2f}x plain ({spread} in {rounds} rounds)")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]))
