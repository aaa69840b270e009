"""The joint law of four tokens through every real drafter, against the target's own, enumerated.

Heads are trained on the target's likeliest answer to the very prompt, so that drafts are neither always right nor
always wrong: a rule's bias shows only where some are kept and some are not. `typical` is lossy, and must be told from
the rest or the test has no teeth.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from augury import LLM, SamplingParams
from augury.train.gates import KINDS, Gates

DEVICE = os.environ.get("AUGURY_TEST_DEVICE", "cpu")
# A thousand answers show a law that is 0.12 away in total variation as often as not; chi-square puts
# `typical` 114 standard deviations off. Smaller faults are for the proofs by enumeration, tests/verify.
PROMPT, TRIALS, TOP_K, LENGTH = "the cat", 1000, 3, 4
METHODS = {"p-eagle": ("eagle3", {"parallel_drafting": True}), "dflash2": ("dflash", {})}
SAMPLED = {"draft_sample_method": "probabilistic"}
RULES: dict[str, dict[str, str]] = {
    "coupled": SAMPLED,
    "standard": {**SAMPLED, "rejection_sample_method": "standard"},
    "block": {**SAMPLED, "rejection_sample_method": "block"},
    "typical": {**SAMPLED, "rejection_sample_method": "typical"},
}
Law = dict[tuple[int, ...], float]


def load(model: Path, **more: Any) -> LLM:
    return LLM(str(model), device=DEVICE, max_model_len=256, max_num_seqs=64, **more)


@pytest.fixture(scope="module")
def law(toy_model: Path) -> Law:
    """The law of the first tokens under top-k sampling, from the target's own log-probabilities."""
    llm = load(toy_model)
    found, start = {(): 1.0}, llm.get_tokenizer().encode(PROMPT)
    asked = SamplingParams(temperature=0, max_tokens=1, logprobs=TOP_K)
    for _ in range(LENGTH):
        grown: Law = {}
        answers = llm.generate([{"prompt_token_ids": [*start, *prefix]} for prefix in found], asked, use_tqdm=False)
        for (prefix, chance), answer in zip(found.items(), answers, strict=True):
            scores = answer.outputs[0].logprobs[0]
            best = sorted(scores, key=lambda t: -scores[t].logprob)[:TOP_K]
            total = sum(math.exp(scores[t].logprob) for t in best)
            for token in best:
                grown[(*prefix, token)] = chance * math.exp(scores[token].logprob) / total
        found = grown
    return found


@pytest.fixture(scope="module")
def gates(toy_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Gates:
    prompt = load(toy_model).get_tokenizer().encode(PROMPT)
    return Gates(toy_model, [prompt], 24, tmp_path_factory.mktemp("gates"))


@pytest.mark.parametrize(
    ("kind", "rule"),
    [(kind, rule) for kind in KINDS for rule in ("standard", "block")] + [("eagle3", "coupled"), ("eagle3", "typical")],
)
def test_the_law_of_four_tokens(toy_model: Path, gates: Gates, law: Law, kind: str, rule: str) -> None:
    spec, model = speculation(gates, kind, rule), toy_model
    if kind == "mtp":  # its layer lies among the target's own tensors
        model = Path(spec.pop("model"))
    llm = load(model, speculative_config=spec)
    asked = SamplingParams(temperature=1, top_k=TOP_K, max_tokens=LENGTH, ignore_eos=True, n=TRIALS, seed=11)
    counts = Counter(tuple(o.token_ids) for o in llm.generate([PROMPT], asked, use_tqdm=False)[0].outputs)
    assert set(counts) <= set(law) and sum(counts.values()) == TRIALS
    assert (distance(counts, law) < 5) == (rule != "typical"), distance(counts, law)
    counted = llm.engine.stats.spec
    assert 0 < counted.num_accepted_tokens < counted.num_draft_tokens


def speculation(gates: Gates, kind: str, rule: str) -> dict[str, Any]:
    method, more = METHODS.get(kind, (kind, {}))
    gate = gates.find(kind) or gates.train(kind, steps=60)
    return {"method": method, "model": str(gate.directory), "num_speculative_tokens": 3, **more, **RULES[rule]}


def distance(counts: Counter[tuple[int, ...]], law: Law) -> float:
    """How many standard deviations chi-square lies above what the law itself would give."""
    cells = [(counts[t], TRIALS * chance) for t, chance in law.items() if TRIALS * chance >= 5]
    rest = TRIALS - sum(expected for _, expected in cells)
    cells += [(TRIALS - sum(seen for seen, _ in cells), rest)] if rest >= 1 else []
    freedom = len(cells) - 1
    return (sum((seen - expected) ** 2 / expected for seen, expected in cells) - freedom) / math.sqrt(2 * freedom)
