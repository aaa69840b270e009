"""A differential fuzzer for DFlash2: random heads, engines and requests against plain decoding, one at a time.

    python tests/helpers/dflash2_fuzz.py --cases 300 --first 0

Every case is made from its number: sizes of the head, either published layout, chains, grown trees and literal ones,
greedy drafts and drawn ones; the requests and the engine are those of hybrid_fuzz. The toy mostly says one of four
tokens, so that a head that was never trained guesses right now and then.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import torch
from formulas_dflash import Shape, shaken
from formulas_dflash2 import DFlash2Formula, Extra, published, speculators
from gate import export
from hybrid_fuzz import ROOM, Asked, Found, draw_requests, draw_settings, serve
from hybrid_runs import engine
from safetensors.torch import load_file, save_file

from augury import LLM

OFTEN = 4  # tokens
TREES = ("[(0,), (1,), (0, 0), (0, 1), (1, 0), (0, 0, 0)]", "[(0,), (0, 0), (0, 0, 0), (0, 0, 1)]")


@dataclass
class Plain:
    """What the toy says, asked once for every request."""

    directory: Path
    llm: LLM
    known: dict[Asked, list[int]] = field(default_factory=dict)

    @classmethod
    def of(cls, toy_model: Path, directory: Path) -> Plain:
        """The toy once more, some of its embeddings, which are its output matrix too, made longer."""
        shutil.copytree(toy_model, directory)
        tensors = load_file(directory / "model.safetensors")
        tensors["model.embed_tokens.weight"][64 : 64 + OFTEN] *= 4
        save_file(tensors, directory / "model.safetensors", {"format": "pt"})
        return cls(directory, engine(directory, max_num_seqs=1, enable_prefix_caching=False, **ROOM))

    def answer(self, asked: Asked) -> list[int]:
        """Plain decoding's."""
        if asked not in self.known:
            [output] = self.llm.generate({"prompt_token_ids": list(asked.prompt)}, asked.params, use_tqdm=False)
            self.known[asked] = list(output.outputs[0].token_ids)
        return self.known[asked]


def draw_head(random: Random, directory: Path) -> None:
    """A checkpoint of random weights and sizes, its pairs strong enough to matter."""
    heads, layers = random.choice(((4, 2), (4, 1), (2, 2), (3, 3))), random.choice((1, 2, 3))
    extra = Extra(
        taps=random.choice((1, 2, 3)),
        group=random.choice((4, 16, 64)),
        rank=random.choice((1, 3, 12)),
        top_k=random.choice((1, 2, 5, 9)),
        scale=random.choice((1.0, 1.7)),
    )
    window, causal, bare = random.choice((0, 3, 7)), random.random() < 0.3, random.random() < 0.3
    shape = Shape(
        heads=heads[0],
        kv_heads=heads[1],
        dim=random.choice((8, 16)),
        inner=random.choice((32, 96)),
        layers=layers,
        bias=random.random() < 0.3,
        sinks=not bare and random.random() < 0.3,
        causal=(causal,) * layers,
        windows=(window,) * layers,
    )
    if bare:
        extra = Extra(**{**vars(extra), "scale": 1.0})
    formula = shaken(DFlash2Formula(shape, extra), random.randrange(1000))
    formula.candidate_selector.predecessor_codebook.data *= 6
    layer: dict[str, Any] = {}
    if window:
        layer = {"layer_types": ["sliding_attention"] * layers, "sliding_window": window, "use_sliding_window": True}
    if bare:
        speculators(directory, formula, layer=layer, sliding_window_non_causal=not causal)
    else:
        inner = {"causal": causal, "attention_sink_bias": shape.sinks}
        export(formula, published(shape, extra, dflash_config=inner, **layer), directory)


def draw_spec(random: Random, head: Path) -> dict[str, Any]:
    """How it drafts: a chain, a grown tree or a literal one."""
    words = json.loads((head / "config.json").read_text())
    wide = {**words, **words.get("dflash_config", {})}["selector_top_k"] > 1
    spec = {"method": "dflash", "model": str(head), "num_speculative_tokens": random.randrange(1, 8)}
    shape = random.choice(("chain", "chain", "tree", "literal" if wide else "tree"))
    if shape == "tree":
        spec["tree"] = {
            "max_nodes": random.randrange(spec["num_speculative_tokens"], 20),
            "top_k": random.choice((1, 3, 9)),
        }
    elif shape == "literal":
        tree = random.choice(TREES)
        spec |= {"speculative_token_tree": tree, "num_speculative_tokens": tree.count("(")}
    elif random.random() < 0.5:
        spec["draft_sample_method"] = "probabilistic"
    if random.random() < 0.2:
        spec["adaptive"] = True
    if random.random() < 0.2:
        spec["max_model_len"] = 30
    return spec


def run_case(number: int, plain: Plain, room: Path) -> Found:
    """One head, one engine, two rounds of requests: the second finds what the first has left in its caches."""
    random, found, head = Random(number), Found(), room / f"head-{number}"
    draw_head(random, head)
    spec, settings = draw_spec(random, head), draw_settings(random)
    llm = engine(plain.directory, plain.llm, **settings, speculative_config=spec)
    rounds = [draw_requests(random)]
    rounds.append([*random.sample(rounds[0], min(3, len(rounds[0]))), *draw_requests(random)[:4]])
    for asked in rounds:
        for i, tokens in serve(llm, asked, random, found).items():
            found.counted.update(requests=1, tokens=len(tokens))
            if tokens != plain.answer(asked[i]):
                found.wrong.append(f"case {number}: {spec} {settings} {asked[i]}: {tokens}")
        llm.engine.scheduler.check()
    stats = llm.engine.stats
    found.counted.update(preempted=stats.preemptions, accepted=stats.spec.num_accepted_tokens)
    found.counted.update(cached=stats.prefix_cache_hits, drafts=stats.spec.num_drafts)
    found.counted["trees" if {"tree", "speculative_token_tree"} & set(spec) else "chains"] += 1
    shutil.rmtree(head)
    return found


def main() -> None:
    """Run cases, and say what they went through."""
    from conftest import save_toy

    options = argparse.ArgumentParser()
    options.add_argument("--cases", type=int, default=100)
    options.add_argument("--first", type=int, default=0)
    given = options.parse_args()
    torch.set_num_threads(1)
    total, wrong = Counter[str](), 0
    with tempfile.TemporaryDirectory() as room:
        plain = Plain.of(save_toy(Path(room) / "toy"), Path(room) / "target")
        for number in range(given.first, given.first + given.cases):
            try:
                found = run_case(number, plain, Path(room))
            except Exception as error:
                raise RuntimeError(f"case {number}") from error
            total.update(found.counted, cases=1)
            wrong += len(found.wrong)
            print(*found.wrong, sep="\n", end="\n" if found.wrong else "", flush=True)
    print(f"{dict(total)}, {wrong} wrong")


if __name__ == "__main__":
    main()
