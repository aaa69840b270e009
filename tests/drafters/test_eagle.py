"""EAGLE, EAGLE-3 and P-EAGLE: heads against their formulas, checkpoints, real life, and the gate of a trained head."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from covering import covering
from eagle_cases import (
    DRAFT,
    EAGLE3,
    TEXT,
    eagle3_module,
    eagle_module,
    run_whole,
    train_eagle,
    train_eagle3,
    write_eagle3,
)
from formulas_eagle import causal
from gate import Studied, export
from generating import DEVICE, PROMPTS, held_to_plain, ids, plainly
from safetensors.torch import load_file, save_file
from stepping import whole_step

from augury import LLM, SamplingParams
from augury.kernels.top import widened
from augury.model.errors import ModelError
from augury.model.heads import block
from augury.model.heads.eagle import EagleHead
from augury.model.heads.eagle3 import Eagle3Head, feature_layers
from augury.model.load import load_target
from augury.model.target import NORMED

VARIANTS: dict[str, dict[str, Any]] = {
    "official": {},
    "normed residual": {"norm_before_residual": True},
    "norm before fc": {"norm_before_fc": True},
    "3.1": {"fc_norm": True, "norm_output": True},
}


@pytest.fixture(scope="module")
def target(toy_model: Path) -> Any:
    return load_target(toy_model, "float32", "cpu")


@pytest.fixture(scope="module")
def studied(toy_model: Path) -> Studied:
    return Studied(toy_model, [[64, 65, 66, 67], [70, 71, 72]], 40)


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("bias", [False, True])
def test_eagle_is_its_formula(tmp_path: Path, target: Any, studied: Studied, layers: int, bias: bool) -> None:
    module = eagle_module(layers, bias)
    head = EagleHead.load(export(module, {**DRAFT, "num_hidden_layers": layers}, tmp_path), target, torch.float32, 512)
    streams = studied.streams(TEXT, (NORMED,))
    logits, onward = run_whole(head, TEXT, streams)
    want = module(studied.embed(TEXT[1:]), streams[:-1])
    torch.testing.assert_close(onward, want, atol=1e-4, rtol=1e-3)
    torch.testing.assert_close(logits, studied.head(want), atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("variant", VARIANTS)
def test_eagle3_is_its_formula(tmp_path: Path, target: Any, studied: Studied, variant: str, layers: int) -> None:
    flags = VARIANTS[variant]
    module = eagle3_module(layers, **flags)
    directory = write_eagle3(
        tmp_path, module, num_hidden_layers=layers, eagle_aux_hidden_state_layer_ids=[0, 1, 2], **flags
    )
    head = Eagle3Head.load(directory, target, torch.float32, 512)
    streams = studied.streams(TEXT, (0, 1, 2))
    logits, onward = run_whole(head, TEXT, streams)
    want, fed = module(studied.embed(TEXT[1:]), module.combine(streams[:-1]))
    assert head.targets is not None
    assert torch.equal(head.targets, torch.arange(200) + module.d2t)
    torch.testing.assert_close(logits, want, atol=1e-3, rtol=1e-3)
    wide = widened(logits, head.targets, target.vocab_size)  # what the head has no word for can never be guessed
    assert torch.equal(wide[:, head.targets], logits)
    assert (wide.isinf().sum(1) == 60).all()
    torch.testing.assert_close(onward, fed, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("wanted", [[], [10], [4, 0, 9]], ids=["none", "the last", "three, one of them no group's"])
@pytest.mark.parametrize("kind", ["eagle", "eagle3", "eagle3 of two layers"])
def test_rows_that_nobody_wants_only_leave_keys_and_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: Any, studied: Studied, kind: str, wanted: list[int]
) -> None:
    layers = 2 if "two" in kind else 1
    if kind == "eagle":
        head: Any = EagleHead.load(export(eagle_module(), DRAFT, tmp_path), target, torch.float32, 512)
    else:
        module = eagle3_module(layers)
        directory = write_eagle3(tmp_path, module, num_hidden_layers=layers, eagle_aux_hidden_state_layer_ids=[0, 1, 2])
        head = Eagle3Head.load(directory, target, torch.float32, 512)
    streams, ran = studied.streams(TEXT, head.features), list[int]()
    run = head.blocks.run
    monkeypatch.setattr(head.blocks, "run", lambda rows, *more: ran.append(len(rows.tokens)) or run(rows, *more))
    found = []
    for least in (1 << 30, 1):
        monkeypatch.setattr(block, "MANY_ROWS", least)
        logits, onward = run_whole(head, TEXT, streams, wanted)
        found.append((logits, onward, *(store.clone() for store in (*head.cache.keys, *head.cache.values))))
    for whole, apart in zip(*found, strict=True):
        torch.testing.assert_close(apart, whole, atol=1e-6, rtol=1e-6)
    assert ran == [11, *([11] if layers == 2 else [len(wanted)] if wanted else [])]


def test_feature_layers_are_found_where_releases_put_them(target: Any) -> None:
    assert feature_layers({"eagle_aux_hidden_state_layer_ids": [0, 1, 2]}, target) == (0, 1, 2)
    assert feature_layers({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1]}}, target) == (1, 2)
    assert feature_layers({"eagle_config": {"use_aux_hidden_state": False}}, target) == (2,)
    with pytest.raises(ModelError, match="the target has 2"):
        feature_layers({}, target)  # a two-layer toy has no layer 2, 1, -1


# --- checkpoints ---------------------------------------------------------------------------------------------------


def layouts(directory: Path) -> dict[str, Path]:
    """One EAGLE-3 head in every layout that is published."""
    module = eagle3_module()
    ids = {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]}
    original = write_eagle3(directory / "original", module, **ids)
    tensors = load_file(original / "model.safetensors")
    modelopt = directory / "modelopt"
    modelopt.mkdir()
    save_file({n.replace("midlayer.", "layers.0."): t for n, t in tensors.items()}, modelopt / "model.safetensors")
    (modelopt / "config.json").write_text(json.dumps({**EAGLE3, **ids}))
    speculators = directory / "speculators"
    speculators.mkdir()
    save_file({n.replace("midlayer.", "layers.0."): t for n, t in tensors.items()}, speculators / "model.safetensors")
    nested = {"speculators_model_type": "eagle3", "transformer_layer_config": DRAFT, "draft_vocab_size": 200, **ids}
    (speculators / "config.json").write_text(json.dumps(nested))
    pickled = directory / "pickled"
    pickled.mkdir()
    torch.save(tensors, pickled / "pytorch_model.bin")
    (pickled / "config.json").write_text(json.dumps({**EAGLE3, **ids}))
    return {"original": original, "modelopt": modelopt, "speculators": speculators, "pickled": pickled}


def test_every_published_layout_loads_alike(tmp_path: Path, target: Any, studied: Studied) -> None:
    streams = studied.streams(TEXT, (0, 1, 2))
    results = {}
    for name, directory in layouts(tmp_path).items():
        results[name] = run_whole(Eagle3Head.load(directory, target, torch.float32, 512), TEXT, streams)[0]
    for name, logits in results.items():
        assert torch.equal(logits, results["original"]), name


class Evil:
    """A pickle that would run code."""

    def __reduce__(self) -> Any:
        return os.system, ("true",)


def test_bad_heads_are_refused_before_any_token(tmp_path: Path, target: Any) -> None:
    def broken(name: str, change: Any, **config: Any) -> Path:
        config = {"eagle_aux_hidden_state_layer_ids": [0, 1, 2], **config}
        directory = write_eagle3(tmp_path / name, eagle3_module(), **config)
        tensors = load_file(directory / "model.safetensors")
        change(tensors)
        save_file(tensors, directory / "model.safetensors")
        return directory

    cases = [
        (broken("missing", lambda t: t.pop("fc.weight")), "missing: fc.weight"),
        (broken("no d2t", lambda t: t.pop("d2t")), "missing: d2t"),
        (broken("extra", lambda t: t.update(more=torch.zeros(2))), "unexpected: more"),
        (broken("shape", lambda t: t.update({"norm.weight": torch.zeros(3)})), r"norm.weight is \[3\], not \[64\]"),
        (broken("outside", lambda t: t.update(d2t=torch.full((200,), 99))), "points outside"),
        (broken("width", lambda t: None, hidden_size=128), "made for hidden size 128, the target has 64"),
        (broken("layers", lambda t: None, eagle_aux_hidden_state_layer_ids=[0, 1, 9]), "another target"),
    ]
    cut = broken("cut", lambda t: None)
    file = cut / "model.safetensors"
    file.write_bytes(file.read_bytes()[:1000])
    cases.append((cut, "cut short"))
    evil = broken("evil", lambda t: None)
    (evil / "model.safetensors").unlink()
    (evil / "pytorch_model.bin").write_bytes(pickle.dumps({"fc.weight": Evil()}))
    cases.append((evil, "could run code"))
    for directory, says in cases:
        with pytest.raises(ModelError, match=says):
            Eagle3Head.load(directory, target, torch.float32, 512)


# --- real life -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def heads(tmp_path_factory: pytest.TempPathFactory, studied: Studied) -> dict[str, Path]:
    """A trained head of each kind."""
    root = tmp_path_factory.mktemp("heads")
    return {"eagle": train_eagle(root / "a", studied), "eagle3": train_eagle3(root / "b", studied)}


@pytest.fixture(scope="module")
def plain(toy_model: Path) -> LLM:
    return LLM(str(toy_model), device=DEVICE, max_model_len=256)


def drafted(toy_model: Path, method: str, head: Path, settings: dict[str, Any] | None = None, **spec: Any) -> LLM:
    wanted = {"method": method, "model": str(head), "num_speculative_tokens": 4, **spec}
    return LLM(str(toy_model), device=DEVICE, **{"max_model_len": 256, **(settings or {})}, speculative_config=wanted)


SETTINGS: list[dict[str, Any]] = [
    {},
    {"max_num_seqs": 1},
    {"max_num_seqs": 4, "long_prefill_token_threshold": 5},
    {"block_size": 4},
    {"num_gpu_blocks_override": 18, "max_num_seqs": 8},
]


# How drafts are chosen knows nothing of batches and blocks: each two meet, with a head of either kind.
@pytest.mark.parametrize(
    ("settings", "method", "sampled"),
    covering(SETTINGS, ["eagle", "eagle3"], ["greedy", "probabilistic"]),
    ids=lambda s: s if isinstance(s, str) else ",".join(f"{k}={v}" for k, v in s.items()) or "as it comes",
)
def test_text_is_that_of_plain_decoding(
    toy_model: Path, heads: dict, plain: LLM, settings: dict, method: str, sampled: str
) -> None:
    prompts = PROMPTS[: 3 if settings.get("max_num_seqs") == 1 else 8]
    llm = drafted(toy_model, method, heads[method], settings, draft_sample_method=sampled)
    held_to_plain(llm, plain, prompts)
    assert llm.engine.stats.spec.num_accepted_tokens > 0
    if "num_gpu_blocks_override" in settings:
        assert llm.engine.stats.preemptions > 0


@pytest.mark.parametrize("method", ["eagle", "eagle3"])
@pytest.mark.parametrize("rule", ["standard", "block"])
def test_rejection_rules(toy_model: Path, heads: dict, plain: LLM, method: str, rule: str) -> None:
    llm = drafted(toy_model, method, heads[method], draft_sample_method="probabilistic", rejection_sample_method=rule)
    params = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
    assert ids(llm, PROMPTS, params) == plainly(plain, PROMPTS, params)
    sampled = [SamplingParams(temperature=0.8, seed=i, max_tokens=20, ignore_eos=True) for i in range(8)]
    alone = drafted(
        toy_model,
        method,
        heads[method],
        {"max_num_seqs": 1},
        draft_sample_method="probabilistic",
        rejection_sample_method=rule,
    )
    assert ids(llm, PROMPTS, sampled) == ids(alone, PROMPTS, sampled)


@pytest.mark.parametrize("method", ["eagle", "eagle3"])
def test_the_gate_a_trained_head_is_accepted_whole(toy_model: Path, heads: dict, studied: Studied, method: str) -> None:
    """Train, export, load through the public path: on the text it was trained on the drafts are right."""
    llm = drafted(toy_model, method, heads[method])
    for text, start in zip(studied.texts, (4, 3), strict=True):
        asked = {"prompt_token_ids": text[:start]}
        out = llm.generate([asked], SamplingParams(temperature=0, max_tokens=40, ignore_eos=True), use_tqdm=False)
        assert out[0].outputs[0].token_ids == text[start:]
    spec = llm.engine.stats.spec
    assert spec.acceptance_rate > 0.6, spec
    assert spec.accepted_per_pos[3] > 0


# --- P-EAGLE -------------------------------------------------------------------------------------------------------


def test_parallel_drafts_are_the_formula_with_masks(
    tmp_path: Path, toy_model: Path, studied: Studied, plain: LLM
) -> None:
    """One pass: the newest pair, then masks; the drafted tokens are the formula's argmaxes."""
    module = eagle3_module(layers=2, mask_hidden=True)
    directory = write_eagle3(
        tmp_path, module, num_hidden_layers=2, eagle_aux_hidden_state_layer_ids=[0, 1, 2], mask_token_id=259
    )
    llm = drafted(toy_model, "eagle3", directory, parallel_drafting=True)
    prompt = studied.texts[0][:9]
    request = llm._requests("x", prompt, SamplingParams(temperature=0, max_tokens=20, ignore_eos=True))[0]
    llm.engine.add(request)
    whole_step(llm.engine)
    text = request.tokens
    streams = studied.streams(text, (0, 1, 2))[: len(text) - 1]
    hidden = module.combine(torch.cat([streams, module.mask_hidden.view(1, -1).expand(3, -1)]))
    embedded = studied.embed([*text[1:], 259, 259, 259])
    logits, _ = module(embedded, hidden, causal(len(embedded)))
    want = (torch.arange(200) + module.d2t)[logits[-4:].argmax(1)]
    draft = llm.engine.state.draft  # it has room for a prediction, too
    assert draft.tokens[request.slot, : int(draft.count[request.slot])].tolist() == want.tolist()
    llm.engine.abort(request)
    params = [SamplingParams(temperature=t, seed=1, max_tokens=25, ignore_eos=True) for t in (0, 0.8)] * 4
    assert ids(llm, PROMPTS, params) == plainly(plain, PROMPTS, params)


def test_a_plain_head_cannot_draft_in_parallel(toy_model: Path, heads: dict) -> None:
    with pytest.raises(ValueError, match="needs a head trained for it"):
        drafted(toy_model, "eagle3", heads["eagle3"], parallel_drafting=True)
