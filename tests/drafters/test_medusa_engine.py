"""Medusa in real life: text, rules, drift, contexts, and the gate."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from formulas_medusa import Original, best_paths
from gate import Studied, first_blocks, overfit, write
from generating import held_to_plain, ids, plainly
from medusa_cases import CONFIG, DEVICE, HEADS, ORDERED, SHAPES, SIZE, VOCABULARY, drafted, native_names
from stepping import whole_step
from torch import Tensor

from augury import LLM, SamplingParams
from augury.model.target import NORMED

pytestmark = pytest.mark.usefixtures("one_thread_throughout")
PROMPTS = ["abcabcabc", "hello hello", "z", "the cat sat on the mat and the cat sat", "12121", "qqqq", "x y x y", "end"]


@pytest.fixture(scope="module")
def studied(toy_model: Path) -> Studied:
    return Studied(toy_model, [[64, 65, 66, 67], [70, 71, 72]], 40)


def train(directory: Path, studied: Studied) -> Path:
    """Head k says what stands k + 2 places on."""
    module = Original(HEADS, 1, SIZE, VOCABULARY)
    data = [(studied.streams(text, (NORMED,)), torch.tensor(text)) for text in studied.texts]

    def loss() -> Tensor:
        parts = [
            F.cross_entropy(module[k](streams[: -2 - k]), text[2 + k :]) for streams, text in data for k in range(HEADS)
        ]
        return torch.stack(parts).mean()

    overfit(module, loss, 120)
    return write(directory, module.state_dict(), CONFIG, "medusa_lm_head.pt")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, studied: Studied) -> Path:
    return train(tmp_path_factory.mktemp("medusa") / "heads", studied)


@pytest.fixture(scope="module")
def plain(toy_model: Path) -> LLM:
    return LLM(str(toy_model), device=DEVICE, max_model_len=256)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_num_seqs": 1},
        {"max_num_seqs": 4, "long_prefill_token_threshold": 5},
        {"block_size": 4},
        {"num_gpu_blocks_override": 20, "max_num_seqs": 8},
    ],
    ids=lambda s: ",".join(f"{k}={v}" for k, v in s.items()) or "as it comes",
)
def test_text_is_that_of_plain_decoding(
    toy_model: Path, trained: Path, studied: Studied, plain: LLM, options: dict, shape: str
) -> None:
    llm = drafted(toy_model, trained, options, **SHAPES[shape])
    known = [{"prompt_token_ids": studied.texts[0][:n]} for n in (4, 21)]  # text on which drafts are right
    prompts = [*known, *PROMPTS[: 1 if options.get("max_num_seqs") == 1 else 6]]
    held_to_plain(llm, plain, prompts)
    assert llm.engine.stats.spec.accepted_per_pos[-1] > 0  # whole drafts were taken
    assert llm.engine.stats.prefix_cache_hits > 0
    if "num_gpu_blocks_override" in options:
        assert llm.engine.stats.preemptions > 0


@pytest.mark.parametrize("rule", ["standard", "block", "typical"])
@pytest.mark.parametrize("shape", ["chain", "best-first tree"])
def test_other_rules(toy_model: Path, trained: Path, plain: LLM, rule: str, shape: str) -> None:
    """Drafts are never sampled, so the lossless rules are `coupled`; a lossy one depends on nothing but the request."""
    llm = drafted(toy_model, trained, rejection_sample_method=rule, **SHAPES[shape])
    sampled = [SamplingParams(temperature=0.8, seed=i, max_tokens=20, ignore_eos=True) for i in range(8)]
    if rule == "typical":
        alone = drafted(toy_model, trained, {"max_num_seqs": 1}, rejection_sample_method=rule, **SHAPES[shape])
        assert ids(llm, PROMPTS, sampled) == ids(alone, PROMPTS, sampled)
    else:
        assert ids(llm, PROMPTS, sampled) == plainly(plain, PROMPTS, sampled)
    greedy = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
    assert ids(llm, PROMPTS, greedy) == plainly(plain, PROMPTS, greedy)


def steps_of(llm: LLM, prompt: list[int], steps: int, look: Callable[[Any], None]) -> None:
    """Run one greedy request and look at it after every step."""
    request = llm._requests("x", prompt, SamplingParams(temperature=0, max_tokens=60, ignore_eos=True))[0]
    llm.engine.add(request)
    for _ in range(steps):
        whole_step(llm.engine)
        look(request)
    llm.engine.abort(request)


@pytest.mark.parametrize("shape", SHAPES)
def test_drafts_are_the_formula_on_the_last_accepted_state(
    tmp_path: Path, toy_model: Path, studied: Studied, trained: Path, shape: str
) -> None:
    """Step after step, whatever was accepted: the hidden state is that of a fresh pass over the text."""
    module = Original(HEADS, 1, SIZE, VOCABULARY)
    module.load_state_dict(torch.load(trained / "medusa_lm_head.pt", weights_only=True))
    llm = drafted(toy_model, trained, {"block_size": 128}, **SHAPES[shape])
    lengths = []

    def look(request: Any) -> None:
        hidden = studied.streams(request.tokens[:-1], (NORMED,))[-1:]
        scores = list(module.scores(hidden).detach())
        pending = llm.engine.state.draft
        nodes = llm.engine.runner.nodes  # the pending draft has room for a prediction, too
        tokens, parents = (t[request.slot, :nodes].tolist() for t in (pending.tokens, pending.parents))
        assert pending.count[request.slot] == nodes
        if shape == "chain":
            assert tokens == [int(s.argmax()) for s in scores]
        elif shape == "written tree":
            ranked = [s.argsort(1, descending=True)[0].tolist() for s in scores]
            assert tokens == [ranked[len(path) - 1][path[-1]] for path in ORDERED]
            assert parents == [ORDERED.index(path[:-1]) if path[1:] else -1 for path in ORDERED]
        else:
            laws = [s[0].log_softmax(0).topk(4).values.tolist() for s in scores]
            depths, logs = [], []
            for i, (token, parent) in enumerate(zip(tokens, parents, strict=True)):
                assert parent < i
                depths.append(1 + (depths[parent] if parent >= 0 else 0))
                chance = float(scores[depths[-1] - 1][0].log_softmax(0)[token])
                logs.append(chance + (logs[parent] if parent >= 0 else 0))
            assert logs == pytest.approx([chance for _, chance in best_paths(laws, 4, 16)], abs=1e-3)
        lengths.append(request.length)

    steps_of(llm, studied.texts[0][:20], 10, look)  # past what the heads were trained on
    gains = {after - before for before, after in pairwise(lengths)}
    assert 1 in gains and len(gains) > 1  # some drafts failed at once, some did not


@pytest.mark.parametrize("shape", SHAPES)
def test_the_gate_trained_heads_are_accepted_whole(
    toy_model: Path, trained: Path, studied: Studied, shape: str
) -> None:
    """Train, export, load through the public path: on the text they were trained on the drafts are right."""
    llm = drafted(toy_model, trained, **SHAPES[shape])
    assert first_blocks(llm, studied) == [HEADS] * 2
    spec = llm.engine.stats.spec
    assert spec.acceptance_length > 4, spec  # 5 at most, and chance gives 1.004
    print(f"medusa {shape}: {spec.accepted_per_pos} of {spec.num_drafts}, length {spec.acceptance_length:.2f}")


def test_limits_are_kept(toy_model: Path, trained: Path, plain: LLM) -> None:
    """A drafter with less context steps aside, a schedule thins trees out, and the last token needs no draft."""
    params = SamplingParams(temperature=0, max_tokens=50, ignore_eos=True)
    want = plainly(plain, PROMPTS, params)
    free, short = drafted(toy_model, trained), drafted(toy_model, trained, max_model_len=24)
    assert ids(free, PROMPTS, params) == ids(short, PROMPTS, params) == want
    assert 0 < short.engine.stats.spec.num_drafts < free.engine.stats.spec.num_drafts / 2
    table = {"num_speculative_tokens_per_batch_size": [[1, 2, 4], [3, 8, 2]], "tree": {"max_nodes": 16, "top_k": 2}}
    thin = drafted(toy_model, trained, **table)
    assert ids(thin, PROMPTS, params) == want
    narrow = drafted(toy_model, trained, tree={"max_nodes": 63, "top_k": 1})  # fewer contenders than nodes
    assert ids(narrow, PROMPTS, params) == want
    assert narrow.engine.stats.spec.num_accepted_tokens == free.engine.stats.spec.num_accepted_tokens > 0
    one = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)
    assert [len(t) for t in ids(free, PROMPTS, one)] == [1] * len(PROMPTS)


def test_a_reduced_vocabulary_drafts_tokens_of_the_target(
    tmp_path: Path, toy_model: Path, studied: Studied, trained: Path, plain: LLM
) -> None:
    said = sorted({token for text in studied.texts for token in text})
    tensors = native_names(torch.load(trained / "medusa_lm_head.pt", weights_only=True), 1)
    tensors["token_map"] = torch.tensor(said)
    config = {"model_type": "medusa", "vocab_size": VOCABULARY, "truncated_vocab_size": len(said)}
    llm = drafted(toy_model, write(tmp_path, tensors, config))
    prompts = [{"prompt_token_ids": text[:4]} for text in studied.texts]
    params = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
    assert ids(llm, prompts, params) == plainly(plain, prompts, params)
    assert llm.engine.stats.spec.acceptance_length > 4
