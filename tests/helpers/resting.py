"""Drafts of an engine whose captured drafter rests now and then, and of one whose drafter reads every pass.

    python resting.py MODEL DEVICE METHOD DRAFTER

Prints both as JSON: tokens of every answer, and by the text after which something was drafted what that was, with a sum
over each row of the drafter's cache. On a CPU passes run as if they were captured; AUGURY_KERNELS=triton chooses the
kernels that a GPU has.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import torch

from augury import LLM, SamplingParams
from augury.engine import aside
from augury.engine.aside import may_rest
from augury.engine.budget import FixedBudget
from augury.engine.flight import Flight
from augury.engine.request import Request

K = 2


class Direct:
    """What a captured pass does, without a graph."""

    graphs = 0

    def __init__(self, runner: Any) -> None:
        self.begin = lambda step_input, version: (step_input, runner.score(step_input))
        self.finish = lambda begun: runner.decide(*begun)


class NowAndThen(FixedBudget):
    """Two passes with drafts, seven without, one request after another."""

    def __init__(self, nodes: int, rests: bool) -> None:
        super().__init__(nodes)
        self._rests, self._passes = rests, 0

    def allow(self, requests: list[Request], rows: int) -> list[int]:
        """Everybody drafts, or nobody."""
        self._passes += 1
        return [self.nodes if not self._rests or self._passes % 9 < 2 else 0] * len(requests)


def rows(engine: Any, request: Request) -> list[float]:
    """What the drafter's cache holds of all tokens but the first, whose row may be empty, and the newest."""
    places = torch.arange(1, request.length - 1, device=engine.target.device)
    size, keys = engine.runner.block_size, engine.drafter.stores[0]
    line = engine.state.block_tables[request.slot, places // size] * size + places % size
    return [round(x, 3) for x in keys[line].float().flatten(1).abs().sum(1).tolist()]


def engine_of(model: str, device: str, spec: dict[str, Any]) -> LLM:
    """An engine whose drafter may rest."""
    llm = LLM(model, device=device, dtype="float32", max_model_len=96, max_num_seqs=2, block_size=4, **spec)
    runner = llm.engine.runner
    if device == "cpu":
        runner.captured = Direct(runner)  # type: ignore[assignment]
        llm.engine.depth, llm.engine.state.tracks = 1, True
        runner.by_slot = True
        may_rest(runner, False)
    else:
        llm.engine.depth = 0  # what a captured pass drafts must be read before the next one
    return llm


def run(model: str, device: str, spec: dict[str, Any], rests: bool) -> dict[str, Any]:
    """Two turns of two conversations: the second finds blocks of the first."""
    llm = engine_of(model, device, spec)
    engine, drafts = llm.engine, dict[str, Any]()
    engine.budget, commit, passes = NowAndThen(K, rests), engine.commit, [0]

    def noted(flight: Flight) -> Any:
        updates = commit(flight)
        passes[0] += flight.step_input.shape.draft_depth == -1
        assert flight.drafts is not None
        for g, item in enumerate(flight.scheduled):
            count = int(flight.drafts.count[g])
            if count and item.request.finish_reason is None:
                guesses = flight.drafts.tokens[g, :count].tolist()
                drafts[str(item.request.tokens)] = [guesses, rows(engine, item.request)]
        return updates

    engine.commit = noted  # type: ignore[method-assign]
    said, prompts = [], [list(b"abcabc"), list(b"12")]
    for _ in range(2):
        params = [SamplingParams(max_tokens=24, ignore_eos=True, seed=seed) for seed in range(2)]
        outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False)
        said += (answers := [list(output.outputs[0].token_ids) for output in outputs])
        prompts = [prompt + answer + list(b"x") for prompt, answer in zip(prompts, answers, strict=True)]
    return {"said": said, "drafts": drafts, "rested": passes[0]}


if __name__ == "__main__":
    aside.LINES = 4  # so that short texts fill them
    if os.environ.get("TRITON_INTERPRET") == "1":
        import interpreter  # noqa: F401
    model, device, method, drafter = sys.argv[1:]
    spec = {"method": method, "model": drafter, "num_speculative_tokens": K, "adaptive": device == "cuda"}
    found = [run(model, device, {"speculative_config": spec}, rests) for rests in (True, False)]
    print(json.dumps(dict(zip(("resting", "reading"), found, strict=True))))
