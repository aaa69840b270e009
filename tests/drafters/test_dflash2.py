"""DFlash2: every draft against its formulas, both layouts, chains and trees, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from formulas_dflash import Shape, shaken
from formulas_dflash2 import DFlash2Formula, Extra, paths_of, published, speculators
from gate import Studied, export
from generating import DEVICE, PROMPTS, encoded
from stepping import whole_step
from torch import Tensor

from augury import LLM, SamplingParams
from augury.config.errors import ConfigError
from augury.drafters.dflash import DFlashDrafter
from augury.engine.swap import DrafterSwap
from augury.model.errors import ModelError
from augury.model.heads.dflash2 import DFlash2

pytestmark = pytest.mark.usefixtures("one_thread_throughout")

K = 6


@pytest.fixture(scope="module")
def studied(toy_model: Path) -> Studied:
    return Studied(toy_model, [], 0)


def written(directory: Path, shape: Shape | None = None, extra: Extra | None = None, **more: Any) -> DFlash2Formula:
    """A random drafter in z-lab's layout, its pairs strong enough to overrule the block's own order."""
    shape, extra = shape or Shape(), extra or Extra()
    formula = strong(shaken(DFlash2Formula(shape, extra), seed=more.pop("seed", 2)))
    export(formula, published(shape, extra, **more), directory)
    return formula


def strong(formula: Any) -> DFlash2Formula:
    with torch.no_grad():
        for table in (formula.candidate_selector.predecessor_codebook, formula.candidate_selector.successor_codebook):
            table *= 6
    return formula


def load(toy_model: Path, drafter: Path, engine: dict[str, Any] | None = None, **spec: Any) -> LLM:
    wanted = {"method": "dflash", "model": str(drafter), "num_speculative_tokens": K, **spec}
    shared = {"max_model_len": 256, "block_size": 4, **(engine or {})}
    return LLM(str(toy_model), device=DEVICE, **shared, speculative_config=wanted)


def begun(llm: LLM, toy_model: Path, prompts: list[str]) -> list[Any]:
    """Requests in the engine, not yet run."""
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    requests = [llm.intake.requests(str(i), t, params)[0] for i, t in enumerate(encoded(toy_model, prompts))]
    for request in requests:
        llm.engine.add(request)
    return requests


def drafted(llm: LLM, request: Any) -> tuple[list[int], list[int]]:
    """A request's drafted tokens and their parents."""
    draft = llm.engine.state.draft
    count = int(draft.count[request.slot])
    return draft.tokens[request.slot, :count].tolist(), draft.parents[request.slot, :count].tolist()


VARIANTS: dict[str, tuple[Shape, Extra, dict[str, Any]]] = {
    "as published": (Shape(), Extra(), {}),
    "three taps, small groups": (Shape(), Extra(taps=3, group=4), {}),
    "one tap": (Shape(), Extra(taps=1, group=64), {}),
    "two candidates": (Shape(), Extra(top_k=2, rank=3), {}),
    "scaled embeddings": (Shape(), Extra(scale=1.7), {}),
    "causal": (Shape(causal=(True, True)), Extra(), {"dflash_config": {"causal": True}}),
    "sinks and biases": (Shape(sinks=True, bias=True), Extra(), {"dflash_config": {"attention_sink_bias": True}}),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_drafts_are_the_formula(toy_model: Path, studied: Studied, tmp_path: Path, variant: str) -> None:
    shape, extra, config = VARIANTS[variant]
    formula = written(tmp_path, shape, extra, **config)
    llm = load(toy_model, tmp_path)
    assert isinstance(llm.engine.drafter, DFlashDrafter) and isinstance(llm.engine.drafter.head, DFlash2)
    (request,) = begun(llm, toy_model, PROMPTS[:1])
    for _ in range(4):
        whole_step(llm.engine)
        assert drafted(llm, request)[0] == formula.chain(studied, request.tokens, K)


@torch.no_grad()
def test_the_parts_matter(toy_model: Path, studied: Studied, tmp_path: Path) -> None:
    """Without selector or convolutions the same formula drafts otherwise: equality above says something of both."""
    formula = written(tmp_path)
    text = encoded(toy_model, PROMPTS[:1])[0]
    whole = formula.chain(studied, text, K)
    formula.candidate_selector.hidden_projection.weight.zero_()
    assert formula.chain(studied, text, K) != whole
    for taken in ("attention_conv", "mlp_conv"):
        other = written(tmp_path)
        for layer in other.layers:
            getattr(layer, taken).kernel_projection.weight.zero_()
        assert not torch.allclose(other.hidden(studied, text, K), written(tmp_path).hidden(studied, text, K), atol=1e-2)


@pytest.mark.parametrize(
    "engine",
    [
        {},
        {"long_prefill_token_threshold": 5},
        {"max_num_seqs": 2},
        {"num_gpu_blocks_override": 24, "max_model_len": 80},
    ],
    ids=str,
)
def test_drafts_of_a_batch(toy_model: Path, studied: Studied, tmp_path: Path, engine: dict[str, Any]) -> None:
    """Several requests at once, prompts in chunks, cold and then found in the prefix cache."""
    formula, checked = written(tmp_path), 0
    llm = load(toy_model, tmp_path, engine)
    for _ in range(2):
        requests = begun(llm, toy_model, PROMPTS[:4])
        for _ in range(12):
            whole_step(llm.engine)
            for request in requests:
                if request.slot < 0 or request.pending != 1:
                    continue  # waiting, or still reading its prompt
                tokens = drafted(llm, request)[0]
                assert tokens == formula.chain(studied, request.tokens, len(tokens)), request.tokens
                checked += len(tokens)
        for request in requests:
            llm.engine.abort(request)
    assert checked > 100


def test_a_prefix_found_again_drafts_the_same(toy_model: Path, studied: Studied, tmp_path: Path) -> None:
    formula = written(tmp_path)
    llm = load(toy_model, tmp_path)
    params = SamplingParams(temperature=0, max_tokens=9, ignore_eos=True)
    llm.generate([PROMPTS[0]], params, use_tqdm=False)
    (request,) = begun(llm, toy_model, PROMPTS[:1])
    whole_step(llm.engine)
    assert request.cached_tokens > 0
    assert drafted(llm, request)[0] == formula.chain(studied, request.tokens, K)


@pytest.mark.parametrize("seed", [2, 3, 4])
@pytest.mark.parametrize(("top_k", "most"), [(3, 12), (9, 20), (2, 40)])
def test_a_grown_tree_is_the_formula(
    toy_model: Path, studied: Studied, tmp_path: Path, seed: int, top_k: int, most: int
) -> None:
    formula = written(tmp_path, seed=seed)
    llm = load(toy_model, tmp_path, tree={"max_nodes": most, "top_k": top_k})
    requests = begun(llm, toy_model, PROMPTS[:2])
    width = min(top_k, formula.extra.top_k)
    for _ in range(3):
        whole_step(llm.engine)
        for request in requests:
            have = paths_of(*drafted(llm, request))
            want = formula.tree(studied, request.tokens, K, width, most)
            assert len(set(have)) == len(have) == min(most, len(want))
            assert_same_but_for_ties(have, want, formula.tree(studied, request.tokens, K, width, 1000))


def assert_same_but_for_ties(have: list[Any], want: dict[Any, float], every: dict[Any, float]) -> None:
    """The same nodes; where rounding decides between two, either will do."""
    least = min(want.values())
    for path in set(have) ^ set(want):
        assert every[path] == pytest.approx(least, abs=1e-4), path


def test_a_literal_tree_is_the_formula(toy_model: Path, studied: Studied, tmp_path: Path) -> None:
    paths = [(0,), (1,), (4,), (0, 0), (0, 3), (1, 0), (0, 0, 2)]
    formula = written(tmp_path)
    llm = load(toy_model, tmp_path, speculative_token_tree=str(paths), num_speculative_tokens=len(paths))
    (request,) = begun(llm, toy_model, PROMPTS[:1])
    for _ in range(3):
        whole_step(llm.engine)
        assert paths_of(*drafted(llm, request)) == formula.literal(studied, request.tokens, paths)


@pytest.mark.parametrize("said", [True, False], ids=["said", "left out"])
def test_speculators_layout(toy_model: Path, studied: Studied, tmp_path: Path, said: bool) -> None:
    """Sliding layers see their whole block unless the file says otherwise; sizes left out are that format's."""
    extra = Extra() if said else Extra(taps=2, group=16, rank=256, top_k=16)
    shape = Shape(windows=(5, 0), causal=(said, False))
    formula = strong(shaken(DFlash2Formula(shape, extra)))
    sliding = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 5, "use_sliding_window": True}
    speculators(tmp_path, formula, layer=sliding, **({"sliding_window_non_causal": False} if said else {}))
    if not said:
        config = json.loads((tmp_path / "config.json").read_text())
        kept = {name: value for name, value in config.items() if name not in extra.words()}
        (tmp_path / "config.json").write_text(json.dumps(kept))
    fixed = {"model": str(tmp_path), "adaptive": False}
    llm = LLM(str(toy_model), device=DEVICE, max_model_len=256, speculative_config=fixed)
    spec = llm.config.speculative_config
    assert spec is not None and (spec.method, spec.num_speculative_tokens, spec.adaptive) == ("dflash", 7, False)
    (request,) = begun(llm, toy_model, PROMPTS[:1])
    for _ in range(3):
        whole_step(llm.engine)
        assert drafted(llm, request)[0] == formula.chain(studied, request.tokens, 7)


def test_another_drafter_is_swapped_in(toy_model: Path, studied: Studied, tmp_path: Path) -> None:
    written(tmp_path / "first")
    second = written(tmp_path / "second", seed=9)
    written(tmp_path / "wider", extra=Extra(top_k=6))
    llm = load(toy_model, tmp_path / "first", {"enable_prefix_caching": False})
    swap = DrafterSwap(llm.engine, llm.config, llm.model_path)
    swap.put(tmp_path / "second")
    (request,) = begun(llm, toy_model, PROMPTS[:1])
    whole_step(llm.engine)
    assert drafted(llm, request)[0] == second.chain(studied, request.tokens, K)
    with pytest.raises(ConfigError, match=r"selector.top_k is 6, the loaded one's 5"):
        swap.put(tmp_path / "wider")


def spoil(directory: Path, change: dict[str, Any], inner: dict[str, Any], tensors: dict[str, Tensor | None]) -> None:
    from safetensors.torch import load_file, save_file

    file = directory / "model.safetensors"
    config, held = json.loads((directory / "config.json").read_text()), load_file(file)
    config |= change
    config["dflash_config"] = {k: v for k, v in (config["dflash_config"] | inner).items() if v is not None}
    (directory / "config.json").write_text(json.dumps(config))
    save_file({k: v for k, v in (held | tensors).items() if v is not None}, file)


@pytest.mark.parametrize(
    ("change", "inner", "tensors", "says"),
    [
        ({}, {"selector_rank": None}, {}, "needs selector_rank, a whole number above 0; it says None"),
        ({}, {"conv_kernel_size": 0}, {}, "needs conv_kernel_size"),
        ({}, {"selector_top_k": True}, {}, "needs selector_top_k"),
        ({}, {"conv_group_size": 7}, {}, "conv_group_size=7 does not divide the hidden size of 64"),
        ({}, {"conv_group_size": 32}, {}, r"attention_conv.kernel_projection.weight is \[16, 64\], not \[8, 64\]"),
        ({}, {"selector_top_k": 261}, {}, "selector_top_k=261 is more than the target's 260 tokens"),
        ({}, {"selector_rank": 11}, {}, r"predecessor_codebook is \[260, 12\], not \[260, 11\]"),
        ({}, {"sample_from_anchor": True}, {}, "sample_from_anchor is not DFlash2"),
        ({"draft_vocab_size": 90}, {}, {}, "among 90 .draft_vocab_size.; take one with the whole vocabulary"),
        ({"quantization_config": {"bits": 8}}, {}, {}, "quantised weights"),
        ({}, {}, {"layers.1.mlp_conv.base_kernel": None}, "missing: layers.1.mlp_conv.base_kernel"),
        ({}, {}, {"candidate_selector.bias": torch.zeros(2)}, "unexpected: candidate_selector.bias"),
        ({"architectures": ["LiLiCorrDraftModel"]}, {}, {}, "is a LiLiCorr drafter, which is not supported"),
        ({"architectures": ["DFlashDraftModel"]}, {}, {}, "unexpected: candidate_selector.hidden_projection.weight"),
    ],
)
def test_bad_checkpoints_are_refused(
    toy_model: Path,
    tmp_path: Path,
    change: dict[str, Any],
    inner: dict[str, Any],
    tensors: dict[str, Tensor | None],
    says: str,
) -> None:
    written(tmp_path)
    spoil(tmp_path, change, inner, tensors)
    with pytest.raises(ModelError, match=says):
        load(toy_model, tmp_path)


def test_a_tree_beyond_the_candidates_is_refused(toy_model: Path, tmp_path: Path) -> None:
    written(tmp_path, extra=replace(Extra(), top_k=2))
    with pytest.raises(ConfigError, match=r"chooses among 2 tokens at each position .selector_top_k.: .* child 3"):
        load(toy_model, tmp_path, speculative_token_tree="[(0,), (3,)]", num_speculative_tokens=2)


def test_it_is_no_dspark(toy_model: Path, tmp_path: Path) -> None:
    written(tmp_path)
    with pytest.raises(ModelError, match="is a DFlash2 drafter, use method='dflash'"):
        LLM(
            str(toy_model),
            device=DEVICE,
            speculative_config={"method": "dspark", "model": str(tmp_path), "num_speculative_tokens": 3},
        )
