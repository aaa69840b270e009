"""What "auto" brings beside plain decoding and every fixed K, at several numbers of requests, by turns in one process.

    python tests/helpers/never_slower.py [--device cuda] [--method ngram] [--streams 1 4 16] [--fixed 1 3 6] [--json]
    python tests/helpers/never_slower.py --device cuda --shape llama-8b --method eagle3 --accepted 0.7 0.1 [...]

chat and edit are `augury bench`'s prompts, mixed is half of either, hostile is tokens at random answered at temperature
1.5, where next to nothing is accepted. Engines share their weights. A round runs every contender once; the figures are
medians of the rounds' ratios to plain, which ran seconds before. On a CPU that others use as well, OMP_NUM_THREADS=1
and `--clock processor` count what one thread was given, not what it waited for. With `--shape` weights are random,
of a size that `augury bench gpu` knows, and a guess is accepted with the chance that `--accepted` names, if the
earlier ones were.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from random import Random
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from augury import LLM, SamplingParams
from augury.tools.bench.gpu.shapes import drafter_of, shape_of
from augury.tools.shared.prompts import SETS

CLOCKS = {"wall": time.perf_counter, "processor": time.process_time}


def random_set(llm: LLM, most: int) -> tuple[list[Any], float]:
    """Tokens at random, answered at a temperature where next to nothing is foreseen."""
    random, words = Random(0), llm.engine.target.vocab_size
    return [[random.randrange(100, words) for _ in range(64)] for _ in range(most)], 1.5


def prompt_sets(llm: LLM, most: int) -> dict[str, tuple[list[Any], float]]:
    """Token ids and a temperature, for each kind of traffic."""

    def asked(name: str) -> list[Any]:
        found = [llm.tokenizer.chat(p.messages(), **p.template_options()) for p in SETS[name]]
        return [found[i % len(found)] for i in range(most)]

    chat, edit = asked("chat"), asked("edit")
    mixed = [(chat, edit)[i % 2][i] for i in range(most)]
    return {"chat": (chat, 0.0), "edit": (edit, 0.0), "mixed": (mixed, 0.0), "hostile": random_set(llm, most)}


def space(given: argparse.Namespace) -> dict[str, Any]:
    """What all engines are given; on a GPU each has its own keys and values, so none may take all memory."""
    room: dict[str, Any] = {"device": given.device, "max_model_len": 1024, "max_num_seqs": max(given.streams)}
    if given.device == "cuda":
        room |= {"num_gpu_blocks_override": max(given.streams) * 1024 // 16 + 64}
    if given.shape:
        dtype = "bfloat16" if given.device == "cuda" else "float32"
        room |= {"load_format": "dummy", "skip_tokenizer_init": True, "dtype": dtype}
    return room


def speculating(plain: LLM, spec: dict[str, Any], given: argparse.Namespace) -> dict[str, LLM]:
    """Each fixed K, and "auto", on the plain engine's weights."""
    made = {}
    for k in [*given.fixed, "auto"]:
        chosen = {**spec, "num_speculative_tokens": k}
        if k == "auto" and given.most:
            chosen |= {"num_speculative_tokens": given.most, "adaptive": True}
        if rates := spec.get("synthetic_acceptance_rates"):
            chosen["synthetic_acceptance_rates"] = rates[: chosen["num_speculative_tokens"]]
        made[str(k)] = LLM(given.model, weights_of=plain, speculative_config=chosen, **space(given))
    return made


def with_chances(given: argparse.Namespace, home: Path) -> list[dict[str, Any]]:
    """Random weights of a shape, and what is measured for each chance of a guess to be accepted."""
    shape, rows = shape_of(given.shape), []
    head = drafter_of(given.method, shape, given.most, None).config
    for name, config in (("target", shape), ("head", head)):
        (home / name).mkdir()
        (home / name / "config.json").write_text(json.dumps(config))
    given.model = str(home / "target")
    plain = LLM(given.model, **space(given))
    for chance in given.accepted:
        rates = [round(chance ** (i + 1), 4) for i in range(given.most)]
        law = {"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": rates}
        spec = {"method": given.method, "model": str(home / "head"), **law}
        sets = {f"{chance:g} of guesses": random_set(plain, max(given.streams))}
        rows += measured({"plain": plain, **speculating(plain, spec, given)}, sets, given)
    return rows


def timed(llm: LLM, prompts: list[Any], temperature: float, tokens: int, clock: str) -> float:
    """Tokens a second, the prompts included."""
    now = CLOCKS[clock]
    llm.reset_prefix_cache()
    asked = [
        SamplingParams(temperature=temperature, seed=i, max_tokens=tokens, ignore_eos=True) for i in range(len(prompts))
    ]
    begun = now()
    llm.generate(prompts, asked, use_tqdm=False)
    return len(prompts) * tokens / (now() - begun)


def measured(
    made: dict[str, LLM], sets: dict[str, tuple[list[Any], float]], given: argparse.Namespace
) -> list[dict[str, Any]]:
    """One row for each kind of traffic and number of requests."""
    rows = []
    for name, (prompts, temperature) in sets.items():
        for streams in given.streams:
            speeds: dict[str, list[float]] = {who: [] for who in made}
            for turn in range(given.rounds + 1):
                for who, llm in made.items():
                    speed = timed(llm, prompts[:streams], temperature, given.tokens, given.clock)
                    if turn:  # the first warms up, and lets "auto" learn
                        speeds[who].append(speed)
            ratios = {who: [a / b for a, b in zip(s, speeds["plain"], strict=True)] for who, s in speeds.items()}
            rows.append(
                {
                    "set": name,
                    "streams": streams,
                    "plain": round(median(speeds["plain"]), 1),
                    **{
                        who: [round(f(r), 3) for f in (median, min, max)] for who, r in ratios.items() if who != "plain"
                    },
                }
            )
            if not given.json:
                told = ", ".join(
                    f"{who} {r[0]:.2f} ({r[1]:.2f} to {r[2]:.2f})" for who, r in list(rows[-1].items())[3:]
                )
                print(f"{name}, {streams} requests: plain {rows[-1]['plain']} tokens/s; x plain: {told}", flush=True)
    return rows


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="default")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--method", default="ngram")
    parser.add_argument("--shape", default="", help="random weights of this size")
    parser.add_argument("--accepted", type=float, nargs="*", default=[0.7, 0.1], help="chance of a guess, with --shape")
    parser.add_argument("--spec", default="", help="a whole speculative_config, as JSON, instead of a method")
    parser.add_argument("--streams", type=int, nargs="*", default=[1, 2, 4, 8, 16])
    parser.add_argument("--fixed", type=int, nargs="*", default=[1, 3, 6])
    parser.add_argument("--most", type=int, default=0, help="of what auto may draft; 0: the method's own most")
    parser.add_argument("--sets", nargs="*", default=["chat", "edit", "mixed", "hostile"])
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if given.shape:
        given.most = given.most or max(given.fixed)
        with TemporaryDirectory() as home:
            rows = with_chances(given, Path(home))
    else:
        plain, spec = LLM(given.model, **space(given)), json.loads(given.spec or json.dumps({"method": given.method}))
        sets = prompt_sets(plain, max(given.streams))
        made = {"plain": plain, **speculating(plain, spec, given)}
        rows = measured(made, {name: sets[name] for name in given.sets}, given)
    if given.json:
        print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
