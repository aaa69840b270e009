"""Does `augury advise` tell the truth? Predicted speed-ups against measured ones, on prompts not used for fitting.

    python -m augury.tools.advise.held_to_measurement --curve curve.json edit code=humaneval.jsonl maths=gsm8k.jsonl

For each workload: the model's own plain answers are recorded, replayed without a model for every K, and priced with
the cost curve, which comes from other prompts. Then everything is measured: plain and speculative decoding of the same
answer race each other step by step, so that both see the same machine. A step of a given number does the same work in
every round, so its time is the median over the rounds, and a contender's time is the sum over its steps.
What replay says of steps, drafted and accepted tokens must be exactly what the engine then does.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from augury.config.sampling import SamplingParams
from augury.tools.advise.accept import Replayed
from augury.tools.advise.curve import CostCurve, read_curve
from augury.tools.advise.drafters import drafting_for
from augury.tools.advise.predict import Predictor
from augury.tools.advise.traffic import Traffic, walked
from augury.tools.replay.tokens import Script
from augury.tools.shared.prompts import load_prompts

SWEEP = (1, 2, 3, 4, 5, 6, 8)
CONFIGS: list[dict[str, Any]] = [
    {"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 4},
    # Rounds repeat the same answers, so none may be kept from the round before.
    {"method": "suffix", "suffix_decoding_max_cached_requests": 0},
]
METHODS = {config["method"]: config for config in CONFIGS}
QUESTIONS = ("prompt", "question", "user")


def read_prompts(given: str, count: int) -> tuple[str, list[list[dict[str, Any]]], list[dict[str, Any]]]:
    """A workload: a built-in set by name, or NAME=FILE of JSON lines, each with a prompt in any of a few fields."""
    name, _, file = given.partition("=")
    if not file:
        chosen = load_prompts(name)[:count]
        return name, [p.messages() for p in chosen], [p.template_options() for p in chosen]
    records = [json.loads(line) for line in Path(file).read_text().splitlines()[:count]]
    texts = [next((r[f] for f in QUESTIONS if isinstance(r.get(f), str)), None) or r["turns"][0] for r in records]
    return name, [[{"role": "user", "content": t}] for t in texts], [{"add_generation_prompt": True}] * len(texts)


class AnswerUnderWay:
    """One answer as it is generated step by step, with each decode step timed."""

    def __init__(self, llm: Any, tokens: list[int], most: int, k: int | None) -> None:
        extra = None if k is None else {"speculative": {"num_speculative_tokens": k}}
        params = SamplingParams(temperature=0.0, max_tokens=most, ignore_eos=True, detokenize=False, extra_args=extra)
        self.engine = llm.engine
        [self.request] = llm.intake.requests("check", tokens, params)
        self.seconds: list[float] = []  # of decode steps
        self.engine.add(self.request)
        while not self.tokens:  # reading the prompt is not timed
            self.engine.step()

    @property
    def tokens(self) -> list[int]:
        """The tokens generated so far."""
        return list(self.request.tokens[self.request.prompt_len :])

    @property
    def done(self) -> bool:
        """Whether it has finished."""
        return self.request.finish_reason is not None

    def step(self) -> None:
        """One decode step, timed by the engine."""
        self.engine.step()
        self.seconds.append(self.engine.last.seconds)

    @property
    def counts(self) -> tuple[int, int, int]:
        """Decode steps, drafted tokens and accepted tokens so far."""
        spec = self.request.spec_steps
        return len(self.seconds), sum(drafted for drafted, _ in spec), sum(accepted for _, accepted in spec)


def race(answers: list[AnswerUnderWay]) -> None:
    """Always step the shortest answer, so that all see the same machine, moment by moment, at the same context."""
    while waiting := [answer for answer in answers if not answer.done]:
        min(waiting, key=lambda answer: len(answer.tokens)).step()


class Workload:
    """One set of prompts, its answers, predictions and measurements."""

    def __init__(self, name: str, prompts: list[list[int]], most: int) -> None:
        self.name, self.prompts, self.most = name, prompts, most
        self.scripts: list[Script] = []
        self.times: dict[
            tuple[str, int, int], list[list[float]]
        ] = {}  # by method, K it raced at, prompt: rounds of steps
        self.counts: dict[tuple[str, int, int], tuple[int, int, int]] = {}

    def record(self, plain: Any) -> None:
        """The model's own answers, as a trace of token ids."""
        for i, prompt in enumerate(self.prompts):
            answer = AnswerUnderWay(plain, prompt, self.most, None)
            race([answer])
            text = np.array(prompt + answer.tokens, np.int64)
            self.scripts.append(Script(text, [(len(prompt), len(text))], self.name, ""))
            print(f"{self.name}: recorded {i + 1} of {len(self.prompts)}", flush=True)

    def predict(self, curve: CostCurve, method: str) -> dict[int, Any]:
        """Speed-ups by K, from replay and curve alone."""
        counts = {
            k: walked(self.scripts, {**METHODS[method], "num_speculative_tokens": k}, ends_by_length=True)
            for k in SWEEP
        }
        context = float(np.mean([len(s.text) - self.most / 2 for s in self.scripts]))
        traffic = Traffic(context - self.most / 2, self.most, requests=len(self.scripts))
        predictor = Predictor(curve, traffic)
        replayed, drafting = Replayed(counts), drafting_for(method, None)
        return {k: (counts[k], predictor.at(replayed, drafting, 1, k)) for k in SWEEP}

    def measure(self, engines: dict[str, Any], turn: int) -> None:
        """One round: for every prompt and K a race of plain decoding and all methods."""
        for i, prompt in enumerate(self.prompts):
            for k in SWEEP[(turn + i) % len(SWEEP) :] + SWEEP[: (turn + i) % len(SWEEP)]:
                answers = {
                    name: AnswerUnderWay(llm, prompt, self.most, k if name in METHODS else None)
                    for name, llm in engines.items()
                }
                race(list(answers.values()))
                for name, answer in answers.items():
                    assert answer.tokens == self.scripts[i].text[len(prompt) :].tolist(), "the text changed"
                    self.times.setdefault((name, k, i), []).append(answer.seconds)
                    self.counts[name, k, i] = answer.counts

    def race_all(self, engines: dict[str, Any], scripts: list[Script]) -> None:
        """A warm-up round, so that kernels are compiled for the shapes they meet."""
        self.scripts = scripts
        self.measure(engines, 0)

    def seconds(self, method: str, k: int, rounds: slice = slice(None)) -> float:
        """Each step's median over the rounds, summed over steps and prompts."""
        return sum(
            sum(median(step) for step in zip(*self.times[method, k, i][rounds], strict=True))
            for i in range(len(self.prompts))
        )


def report(workload: Workload, curve: CostCurve, rounds: int) -> list[str]:
    """Lines of the table; asserts that replay and engine agree to the token."""
    lines = []
    for method in METHODS:
        predicted = workload.predict(curve, method)
        for k, (counts, _) in predicted.items():
            done = np.array([workload.counts[method, k, i] for i in range(len(workload.prompts))])
            drafted = (counts.nodes * np.arange(counts.nodes.shape[1])).sum(1)
            replayed = np.stack([counts.steps, drafted, counts.accepted], 1)
            assert (done == replayed).all(), f"{workload.name} {method} K={k}: {done.tolist()} {replayed.tolist()}"
        each = [slice(r, r + 1) for r in range(rounds)]
        measured = {k: workload.seconds("plain", k) / workload.seconds(method, k) for k in SWEEP}
        by_round = {
            k: [workload.seconds("plain", k, one) / workload.seconds(method, k, one) for one in each] for k in SWEEP
        }
        chosen = max(SWEEP, key=lambda k: predicted[k][1].decode.value)
        best = max(SWEEP, key=lambda k: measured[k])
        off = [predicted[k][1].decode.value / measured[k] - 1 for k in SWEEP]
        for k in SWEEP:
            at = predicted[k][1]
            marks = ("chosen " if k == chosen else "") + ("best" if k == best else "")
            spread = f"{min(by_round[k]):.2f}-{max(by_round[k]):.2f}"
            lines.append(
                f"| {workload.name} | {method} | {k} | {at.tokens_per_step:.2f} | {at.decode.value:.2f} "
                f"({at.decode.low:.2f}-{at.decode.high:.2f}) | {measured[k]:.2f} ({spread}) "
                f"| {at.decode.value / measured[k] - 1:+.1%} | {marks} |"
            )
        lines.append(
            f"{workload.name}, {method}: worst miss {max(map(abs, off)):.1%}; K chosen {chosen}, best by sweep {best}, "
            f"at the chosen K {measured[chosen]:.3f} of {measured[best]:.3f}; replay = engine in steps and tokens"
        )
    return lines


def main() -> None:
    """Run the check."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="+", help="chat, edit, or NAME=FILE of JSON lines")
    parser.add_argument("--curve", required=True, type=Path, help="a file of `augury bench --cost-curve`")
    parser.add_argument("--model", default="default")
    parser.add_argument("--prompts", type=int, default=6, help="of each workload")
    parser.add_argument("--tokens", type=int, default=64, help="of each answer")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--out", type=Path, help="keep all times here, as JSON")
    asked = parser.parse_args()
    from augury.engine.llm import LLM

    curve = read_curve(asked.curve)
    engines = {"plain": LLM(asked.model, dtype=asked.dtype)}
    for method, config in METHODS.items():
        spec = {**config, "num_speculative_tokens": max(SWEEP)}
        engines[method] = LLM(asked.model, dtype=asked.dtype, speculative_config=spec)
    workloads = []
    for given in asked.workloads:
        name, chats, options = read_prompts(given, asked.prompts)
        ids = [engines["plain"].tokenizer.chat(m, **o) for m, o in zip(chats, options, strict=True)]
        workloads.append(Workload(name, ids, asked.tokens))
        workloads[-1].record(engines["plain"])
    Workload("warm-up", workloads[0].prompts[:1], asked.tokens).race_all(engines, workloads[0].scripts[:1])
    for turn in range(asked.rounds):
        for workload in workloads:
            workload.measure(engines, turn)
            print(f"round {turn + 1} of {asked.rounds}, {workload.name}: load {os.getloadavg()[0]:.1f}", flush=True)
        print("| workload | method | K | tokens a step | predicted | measured (rounds) | off | |")
        print("|---|---|---|---|---|---|---|---|")
        for workload in workloads:
            print("\n".join(report(workload, curve, turn + 1)), flush=True)
    if asked.out:
        kept = {w.name: [[*key, times] for key, times in w.times.items()] for w in workloads}
        asked.out.write_text(json.dumps(kept))


if __name__ == "__main__":
    main()
