"""What "auto" would bring on a machine whose costs hold still: the controller, run on drafts that were recorded once.

    python tests/helpers/replayed_drafts.py [--spec JSON] [--sets chat edit] [--tokens 96] [--rows MS ...] [--json]

Answers are written greedily without drafts, and at every position the drafter is asked what it would guess, and how
likely it thinks that. Then the engine's own controller goes through the answers: which draft it asks for, how much of
it is verified, what that takes by the given costs. Where speeds vary by a third from one minute to the next, this says
which of two controllers is better; it cannot say how fast either is.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterable
from statistics import mean
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch

from augury import LLM, SamplingParams
from augury.config.per_request import SpecOptions
from augury.drafters.chain import ChainWriter
from augury.drafters.confidence import Confidence
from augury.engine.cost import DraftCost, RowCost, every_size
from augury.engine.goodput import Costs, GoodputBudget
from augury.engine.odds import IN_RUNS, STEADY
from augury.observe.steps import Step
from augury.tools.shared.prompts import SETS

NOISE = 0.03  # of every time, as a share of it
# How the controller may judge a drafter: how far records are trusted, and whether drafts may end early.
WAYS = {"short records": (IN_RUNS, False), "long records": (STEADY, False), "early ends": (STEADY, True)}
WORDS = 1000  # of the scores that stand for a probability


class Guesses(NamedTuple):
    """What the drafter says at a position: the probability of each guess, and how many come true."""

    probabilities: list[float]
    true: int


class Machine(NamedTuple):
    """Milliseconds: passes of 1, 2, ... rows, a call of the drafter, and each of its guesses or its one pass."""

    rows: list[float]
    call: float
    level: float
    at_once: bool


def recorded(spec: dict[str, Any], sets: Iterable[str], tokens: int) -> dict[str, list[list[Guesses]]]:
    """Answers to each set's prompts, position by position."""
    llm = LLM("default", max_model_len=1024, max_num_seqs=1, speculative_config=spec)
    chain: Any = llm.engine.drafter and llm.engine.drafter.chain
    said: dict[int, list[tuple[float, int]]] = {}

    def write(draft: Any, inputs: Any, logits: torch.Tensor, i: int) -> torch.Tensor:
        token = ChainWriter.write(chain, draft, inputs, logits, i)
        top = float(torch.softmax(logits[0].float(), -1).max())
        said.setdefault(int(inputs.lengths[0]), []).append((top, int(token[0])))
        return token

    def finish(draft: Any, at_once: bool = False) -> Any:
        draft.count = torch.zeros_like(draft.count)  # nothing is verified: every position is drafted at
        return draft

    chain.write, chain.finish = write, finish
    found: dict[str, list[list[Guesses]]] = {}
    for name in sets:
        for prompt in SETS[name]:
            ids = list(llm.tokenizer.chat(prompt.messages(), **prompt.template_options()))
            said.clear()
            asked = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
            text = [*ids, *llm.generate([ids], asked, use_tqdm=False)[0].outputs[0].token_ids]
            answer = [_compared(said.get(n, []), text[n:]) for n in range(len(ids) + 1, len(text))]
            found.setdefault(name, []).append(answer)
    return found


def _compared(said: list[tuple[float, int]], text: list[int]) -> Guesses:
    true = 0
    while true < min(len(said), len(text)) and said[true][1] == text[true]:
        true += 1
    return Guesses([top for top, _ in said], true)


def times_plain(answers: list[list[Guesses]], machine: Machine, most: int, way: str, seed: int) -> float:
    """Tokens a second with the controller, over those of plain decoding."""
    random, (trust, early) = np.random.default_rng(seed), WAYS[way]
    confidence = Confidence(2, most)
    rows = RowCost(every_size(dict(enumerate(machine.rows, 1))))
    costs = Costs(rows, DraftCost(0.1 * machine.rows[0]))
    budget = GoodputBudget(most, 1, costs, trust=trust, confidence=confidence if early else None)
    tokens, milliseconds = 0, 0.0
    for answer in answers:
        request: Any = SimpleNamespace(slot=0, tenant="", spec_options=SpecOptions())
        budget.seat(request)
        at = pending = 0
        while at < len(answer):
            allowed = budget.allow([request], 1)[0]
            accepted = min(pending, answer[at - 1].true) if pending else 0
            at += 1 + accepted
            drafts = allowed > 0 and at <= len(answer)
            kept = _draft(confidence, answer[at - 1], allowed, pending, machine.at_once, early) if drafts else 0
            drafter = (machine.call + machine.level * confidence.ran) * random.lognormal(0, NOISE) if drafts else 0.0
            took = machine.rows[pending] * random.lognormal(0, NOISE) + drafter
            step = Step(1, 1 + pending, 0, allowed, 0.0, took, drafter, 1 + accepted, sample=budget.sampling)
            step.drafter_depth = confidence.ran if drafts else 0
            if pending:
                budget.see(request, pending, accepted)
                step.drafts.append((pending, accepted, pending))
            budget.learn(step)
            tokens, milliseconds, pending = tokens + 1 + accepted, milliseconds + took, kept
    return tokens / milliseconds * machine.rows[0]


def _draft(confidence: Confidence, guesses: Guesses, allowed: int, pending: int, at_once: bool, early: bool) -> int:
    """Have a recorded draft judged as a drafter would; how much of it is kept."""
    if not early:
        confidence.ran = 1 if at_once else min(allowed, len(guesses.probabilities))
        return min(allowed, len(guesses.probabilities))
    sampling = SimpleNamespace(temperature=torch.zeros(2))
    inputs: Any = SimpleNamespace(slots=torch.tensor([0]), nodes=torch.tensor([pending]), sampling=sampling)
    allowed = min(allowed, len(guesses.probabilities))
    confidence.begin(inputs, torch.tensor([allowed]))
    for i, top in enumerate(guesses.probabilities[:allowed]):
        scores = torch.zeros(1, WORDS)
        top = min(max(top, 1.01 / WORDS), 1 - 1e-9)
        scores[0, 0] = math.log(top / (1 - top) * (WORDS - 1))
        if not confidence.note(scores, i) and not at_once:
            break
    return int(confidence.finish(at_once)[0])


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spec", default='{"method": "eagle3", "num_speculative_tokens": 3}')
    parser.add_argument("--sets", nargs="+", default=["chat", "edit"], choices=list(SETS))
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--rows", nargs="+", type=float, default=[4.2, 4.7, 5.5, 6.3, 6.9, 7.5, 8.2, 8.9])
    parser.add_argument("--call", type=float, default=0.75)
    parser.add_argument("--level", type=float, default=0.4)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def main() -> None:
    given = arguments()
    spec = json.loads(given.spec)
    at_once = spec.get("parallel_drafting", False) or spec["method"] in ("dflash", "dspark")
    machine = Machine(given.rows, given.call, given.level, at_once)
    most = spec["num_speculative_tokens"]
    if most >= len(given.rows):
        raise SystemExit(f"--rows: {most} drafts need the costs of up to {most + 1} rows")
    found: dict[str, dict[str, dict[str, float]]] = {}
    for name, answers in recorded(spec, given.sets, given.tokens).items():
        found[name] = {}
        for way in WAYS:
            ratios = [times_plain(answers * 2, machine, most, way, seed) for seed in range(given.seeds)]
            found[name][way] = {"times_plain": mean(ratios), "least": min(ratios), "most": max(ratios)}
            if not given.json:
                print(
                    f"{name:6} {way:14} {mean(ratios):.2f} x plain ({min(ratios):.2f} to {max(ratios):.2f})", flush=True
                )
    if given.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
