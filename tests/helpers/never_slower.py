"""What "auto" brings beside plain decoding and every fixed K, at several numbers of requests, by turns in one process.

    python tests/helpers/never_slower.py [--device cuda] [--method ngram] [--streams 1 4 16] [--fixed 1 3 6] [--json]
    python tests/helpers/never_slower.py --device cuda --shape llama-8b --method eagle3 --accepted 0.7 0.1 [...]

chat and edit are `augury bench`'s prompts, mixed is half of either, hostile is tokens at random answered at temperature
1.5, where next to nothing is accepted; `--prompts FILE` adds the set `file`. Engines share their weights and, on a CPU,
take turns step by step, the one that has used least time next, so that all see the same moments of a machine that
others use, too. A round answers a window of the prompts with every contender; the figures are those of all rounds
together, with the least and the most of a round. `--clock processor` counts what the threads were given, not what they
waited for. With `--shape` weights are random, of a size that `augury bench gpu` knows, and a guess is accepted with the
chance that `--accepted` names, if the earlier ones were.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from random import Random
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from racing import CLOCKS, Contender, race, window

from augury import LLM
from augury.tools.bench.gpu.shapes import drafter_of, shape_of
from augury.tools.shared.prompts import SETS, load_prompts


def random_set(llm: LLM, most: int) -> tuple[list[Any], float]:
    """Tokens at random, answered at a temperature where next to nothing is foreseen."""
    random, words = Random(0), llm.engine.target.vocab_size
    return [[random.randrange(100, words) for _ in range(64)] for _ in range(most)], 1.5


def prompt_sets(llm: LLM, most: int) -> dict[str, tuple[list[Any], float]]:
    """Token ids and a temperature, for each kind of traffic."""

    def asked(name: str) -> list[Any]:
        found = [llm.tokenizer.chat(p.messages(), **p.template_options()) for p in SETS[name]]
        return [found[i % len(found)] for i in range(max(most, len(found)))]

    chat, edit = asked("chat"), asked("edit")
    mixed = [prompt for pair in zip(chat, edit * 2, strict=False) for prompt in pair]
    return {"chat": (chat, 0.0), "edit": (edit, 0.0), "mixed": (mixed, 0.0), "hostile": random_set(llm, max(most, 16))}


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


def measured(
    made: dict[str, LLM], sets: dict[str, tuple[list[Any], float]], given: argparse.Namespace
) -> list[dict[str, Any]]:
    """One row for each kind of traffic and number of requests."""
    rows = []
    for name, (prompts, temperature) in sets.items():
        for streams in given.streams:
            contenders = {who: Contender(llm, CLOCKS[given.clock]) for who, llm in made.items()}
            rounds = []
            for turn in range(given.warm_up + given.rounds):
                spent = race(contenders, window(prompts, turn, streams), temperature, given.tokens)
                if turn >= given.warm_up:  # the first let "auto" learn
                    rounds.append(spent)
            plain = sum(spent["plain"] for spent in rounds)
            row: dict[str, Any] = {"set": name, "streams": streams}
            row["plain"] = round(len(rounds) * streams * given.tokens / plain, 1)
            for who in made:
                if who != "plain":
                    ratios = [spent["plain"] / spent[who] for spent in rounds]
                    whole = plain / sum(spent[who] for spent in rounds)
                    row[who] = [round(x, 3) for x in (whole, median(ratios), min(ratios), max(ratios))]
            rows.append(row)
            if not given.json:
                told = ", ".join(f"{who} {r[0]:.3f} ({r[2]:.2f} to {r[3]:.2f})" for who, r in list(row.items())[3:])
                print(f"{name}, {streams} requests: plain {row['plain']} tokens/s; x plain: {told}", flush=True)
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
    parser.add_argument("--prompts", type=Path, help="a file of prompts, as `augury bench` takes it: the set `file`")
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--warm-up", type=int, default=2, help="rounds before those")
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
        if given.prompts:
            told = load_prompts(str(given.prompts))
            sets["file"] = [plain.tokenizer.chat(p.messages(), **p.template_options()) for p in told], 0.0
        made = {"plain": plain, **speculating(plain, spec, given)}
        rows = measured(made, {name: sets[name] for name in given.sets}, given)
    if given.json:
        print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
