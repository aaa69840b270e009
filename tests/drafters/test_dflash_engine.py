"""DFlash in the engine: text, drafts, contexts, trees, and a trained head."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from formulas_dflash import IDS, MASK, Blocks, DFlashFormula, Shape, published_config, shaken
from gate import Studied, export, overfit
from generating import DEVICE, PROMPTS, encoded, held_to_plain, ids, plainly
from hypothesis import given, settings
from hypothesis import strategies as st
from stepping import whole_step
from torch import Tensor, nn

from augury import LLM, SamplingParams
from augury.drafters.block import check_depth
from augury.drafters.dflash import DFlashDrafter
from augury.model.load import load_target
from augury.model.target import Target

pytestmark = pytest.mark.usefixtures("one_thread_throughout")


@pytest.fixture(scope="module")
def target(toy_model: Path) -> Target:
    return load_target(toy_model)


@pytest.fixture(scope="module")
def plain(toy_model: Path) -> LLM:
    return LLM(str(toy_model), device=DEVICE, max_model_len=256)


@pytest.fixture(scope="module")
def trained(toy_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A drafter that knows the target's greedy answers to two prompts by heart."""
    torch.manual_seed(3)
    prompts = encoded(toy_model, PROMPTS[:2])
    studied = Studied(toy_model, prompts, 34)
    formula = DFlashFormula(Shape())
    jobs = [lesson(studied, text, len(prompt)) for text, prompt in zip(studied.texts, prompts, strict=True)]

    def loss() -> Tensor:
        parts = []
        for streams, embedded, blocks, labels in jobs:
            logits = studied.head(formula(streams, embedded, blocks))
            parts.append(nn.functional.cross_entropy(logits[labels >= 0], labels[labels >= 0]))
        return torch.stack(parts).mean()

    last = overfit(formula, loss, 400)
    assert last < 0.2, last
    return export(formula, published_config(Shape(), MASK, IDS), tmp_path_factory.mktemp("trained"))


def lesson(studied: Studied, text: list[int], start: int, size: int = 8) -> tuple[Tensor, Tensor, Blocks, Tensor]:
    """Every anchor of a text at once: streams, blocks of masks, and the token at each mask's own position."""
    anchors = list(range(start, len(text) - 1))
    blocks = Blocks.at(anchors, size)
    tokens = torch.tensor([text[p] if p == a else MASK for p, a in zip(blocks.positions, blocks.anchor, strict=True)])
    known = (blocks.positions > blocks.anchor) & (blocks.positions < len(text))
    labels = torch.where(known, torch.tensor(text)[blocks.positions.clamp(max=len(text) - 1)], -1)
    return studied.streams(text, (1, 2)), studied.embed(tokens), blocks, labels


def drafted(toy_model: Path, drafter: Path, engine: dict[str, Any] | None = None, **spec: Any) -> LLM:
    wanted = {"method": "dflash", "model": str(drafter), "num_speculative_tokens": 7, **spec}
    return LLM(str(toy_model), device=DEVICE, **{"max_model_len": 256, **(engine or {})}, speculative_config=wanted)


@pytest.mark.parametrize("tree", [False, True], ids=["chain", "tree"])
def test_the_gate(toy_model: Path, trained: Path, tree: bool) -> None:
    """Trained, exported, loaded: the blocks it learnt are accepted whole."""
    llm = drafted(toy_model, trained, **({"tree": {"max_nodes": 16, "top_k": 3}} if tree else {}))
    params = SamplingParams(temperature=0, max_tokens=33, ignore_eos=True)
    for prompt in PROMPTS[:2]:
        output = llm.generate([prompt], params, use_tqdm=False)[0].outputs[0]
        assert output.from_draft[:9] == [False] + [True] * 7 + [False]
    spec = llm.engine.stats.spec
    assert spec.num_accepted_tokens > 0.8 * 7 * spec.num_drafts


TREE = {"tree": {"max_nodes": 12, "top_k": 3}}
LITERAL = {"speculative_token_tree": "[(0,), (1,), (0, 0), (0, 1), (1, 0), (0, 0, 0)]", "num_speculative_tokens": 6}
SAMPLED = {"draft_sample_method": "probabilistic"}
CHUNKS, CROWDED = {"long_prefill_token_threshold": 5}, {"num_gpu_blocks_override": 19, "max_num_seqs": 8}


@pytest.mark.parametrize(
    ("engine", "spec"),
    [
        ({}, {}),
        ({"max_num_seqs": 1}, {}),
        ({**CHUNKS, "max_num_seqs": 4}, {}),
        (CROWDED, {}),
        ({"block_size": 4}, {}),
        ({}, SAMPLED),
        (CROWDED, SAMPLED),
        ({}, TREE),
        ({**CHUNKS, "block_size": 4}, TREE),
        (CROWDED, TREE),
        ({"max_num_seqs": 4}, LITERAL),
    ],
    ids=str,
)
def test_text_is_that_of_plain_decoding(toy_model: Path, trained: Path, plain: LLM, engine: dict, spec: dict) -> None:
    llm = drafted(toy_model, trained, engine, **spec)
    held_to_plain(llm, plain, PROMPTS, length=24)
    assert llm.engine.stats.spec.num_accepted_tokens > 0
    if "num_gpu_blocks_override" in engine:
        assert llm.engine.stats.preemptions > 0


@pytest.mark.parametrize("rule", ["standard", "block"])
def test_rejection_rules_are_greedy_where_the_request_is(toy_model: Path, trained: Path, plain: LLM, rule: str) -> None:
    llm = drafted(toy_model, trained, draft_sample_method="probabilistic", rejection_sample_method=rule)
    params = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
    assert ids(llm, PROMPTS, params) == plainly(plain, PROMPTS, params)
    assert llm.engine.stats.spec.num_accepted_tokens > 0


def test_a_prefix_found_again_brings_its_context(toy_model: Path, trained: Path) -> None:
    """The same prompt twice drafts and accepts the same, though its prefix is not run again."""
    llm = drafted(toy_model, trained, {"block_size": 4})
    params = SamplingParams(temperature=0, max_tokens=33, ignore_eos=True)
    first, second = (llm.generate([PROMPTS[0]], params, use_tqdm=False)[0] for _ in range(2))
    assert second.num_cached_tokens > 0
    assert first.outputs[0].from_draft == second.outputs[0].from_draft


@given(data=st.data())
@settings(max_examples=12, deadline=None)
def test_the_context_does_not_drift(toy_model: Path, trained: Path, target: Target, data: st.DataObject) -> None:
    """Whatever was accepted and rejected, keys and values are those of the formula over the whole text."""
    temperature = data.draw(st.sampled_from([0.0, 0.4, 1.0]))
    tree = data.draw(st.sampled_from([{}, {"tree": {"max_nodes": 9, "top_k": 2}}]))
    steps = data.draw(st.integers(1, 9))
    llm = drafted(toy_model, trained, {"block_size": 4, "long_prefill_token_threshold": 6}, **tree)
    params = SamplingParams(temperature=temperature, seed=steps, max_tokens=60, ignore_eos=True)
    requests = [llm._requests(str(i), t, params)[0] for i, t in enumerate(encoded(toy_model, PROMPTS[:3]))]
    for request in requests:
        llm.engine.add(request)
    for _ in range(steps):
        whole_step(llm.engine)
    formula = DFlashFormula(Shape())
    from safetensors.torch import load_file

    formula.load_state_dict(load_file(trained / "model.safetensors"))
    for request in requests:
        check_context(llm, formula, request, Studied(toy_model, [], 0))


@torch.no_grad()
def check_context(llm: LLM, formula: DFlashFormula, request: Any, studied: Studied) -> None:
    drafter, known = llm.engine.drafter, request.computed
    assert isinstance(drafter, DFlashDrafter) and known > 0
    rows = [request.blocks[i // 4] * 4 + i % 4 for i in range(known)]
    context = formula.context(studied.streams(request.tokens[:known], (1, 2)))
    for i, layer in enumerate(formula.layers):
        keys, values = layer.self_attn.keys_and_values(context, torch.arange(known))
        torch.testing.assert_close(drafter.head.cache.keys[i][rows].cpu(), keys, atol=2e-4, rtol=2e-3)
        torch.testing.assert_close(drafter.head.cache.values[i][rows].cpu(), values, atol=2e-4, rtol=2e-3)


def test_a_drafter_with_less_context_steps_aside(toy_model: Path, trained: Path, plain: LLM) -> None:
    llm = drafted(toy_model, trained, max_model_len=24)
    params = SamplingParams(temperature=0, max_tokens=50, ignore_eos=True)
    assert ids(llm, PROMPTS, params) == plainly(plain, PROMPTS, params)
    free = drafted(toy_model, trained)
    ids(free, PROMPTS, params)
    assert 0 < llm.engine.stats.spec.num_drafts < free.engine.stats.spec.num_drafts


def test_k_follows_the_block(toy_model: Path, trained: Path) -> None:
    llm = LLM(str(toy_model), device=DEVICE, max_model_len=256, speculative_config={"model": str(trained)})
    assert llm.config.speculative_config is not None
    assert (llm.config.speculative_config.method, llm.config.speculative_config.num_speculative_tokens) == ("dflash", 7)
    with pytest.raises(ValueError, match="write 62 or less"):
        check_depth(63)


def test_a_drafter_of_another_target_is_refused(toy_model: Path, tmp_path: Path) -> None:
    shape = replace(Shape(), hidden=32, stream_size=32)
    export(shaken(DFlashFormula(shape)), published_config(shape, MASK, IDS), tmp_path)
    with pytest.raises(ValueError, match="hidden size 32, the target has 64"):
        drafted(toy_model, tmp_path)
