"""DFlash: the block against its formula, published layouts, and what is refused."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from formulas_dflash import BLOCK, IDS, MASK, VOCAB, Blocks, DFlashFormula, Shape, published_config, shaken
from gate import export
from rows import scattered_tables
from torch import Tensor, nn

from augury.drafters.base import DraftInput
from augury.drafters.block import block_rows
from augury.model.errors import ModelError
from augury.model.heads.dflash import DFlash
from augury.model.heads.dflash_config import default_layer_ids
from augury.model.load import load_target
from augury.model.target import KVCache, Target

pytestmark = pytest.mark.usefixtures("one_thread_throughout")


@pytest.fixture(scope="module")
def target(toy_model: Path) -> Target:
    return load_target(toy_model)


def written(shape: Shape, directory: Path, module: nn.Module | None = None, **more: Any) -> DFlashFormula:
    """A random drafter in z-lab's layout."""
    module = module or shaken(DFlashFormula(shape))
    export(module, published_config(shape, MASK, IDS, **more), directory)
    return module  # type: ignore[return-value]


def a_turn(lengths: list[int], history: Tensor | None = None, **more: Any) -> DraftInput:
    """Where a few groups stand; group g has slot g."""
    count = torch.tensor(lengths)
    zero = torch.zeros_like(count)
    given: dict[str, Any] = {
        "slots": torch.arange(len(lengths)),
        "lengths": count,
        "budget": zero,
        "sampling": None,
        "history": torch.zeros(len(lengths), 64, dtype=torch.int64) if history is None else history,
        "block_tables": scattered_tables(len(lengths)),
        "block_size": BLOCK,
        "most_rows": 64,
        "span": 64,
        "row_begin": zero,
        "start": zero,
        "num_new_tokens": zero,
        "nodes": zero,
        "path": torch.full((len(lengths), 1), -1),
        **more,
    }
    return DraftInput(**given)


def test_blocks_are_laid_out_as_in_vllm() -> None:
    """K=3, three requests whose newest tokens 100, 200, 300 stand at 10, 8 and 12."""
    history = torch.zeros(3, 64, dtype=torch.int64)
    for g, (place, token) in enumerate([(10, 100), (8, 200), (12, 300)]):
        history[g, place] = token
    rows, masked = block_rows(a_turn([11, 9, 13], history), torch.tensor([3, 3, 3]), 3, MASK)
    assert rows.tokens.tolist() == [100, MASK, MASK, MASK, 200, MASK, MASK, MASK, 300, MASK, MASK, MASK]
    assert rows.positions.tolist() == [10, 11, 12, 13, 8, 9, 10, 11, 12, 13, 14, 15]
    assert rows.wanted.tolist() == [1, 2, 3, 5, 6, 7, 9, 10, 11]
    assert rows.context.tolist() == rows.base.tolist() == [10] * 4 + [8] * 4 + [12] * 4
    assert rows.ancestors.tolist() == [0b1111] * 12
    assert masked.tolist() == [False, True, True, True] * 3


def test_a_shorter_block_and_an_idle_group_leave_padding() -> None:
    rows, masked = block_rows(a_turn([5, 9, 0]), torch.tensor([1, 0, 0]), 2, MASK)
    assert rows.positions.tolist() == [4, 5] + [0] * 7
    assert rows.context.tolist() == [4, 4] + [0] * 7 and rows.ancestors.tolist() == [3, 3] + [0] * 7
    assert rows.write[2:].tolist() == [0] * 7 and masked.tolist() == [False, True] + [False] * 7


VARIANTS: dict[str, tuple[Shape, dict[str, Any]]] = {
    "as published": (Shape(), {}),
    "biases": (Shape(bias=True), {}),
    "one layer, wide heads": (replace(Shape(), layers=1, dim=32, heads=2, kv_heads=1), {}),
    "is_causal": (Shape(causal=(True, True)), {"is_causal": True, "dflash_config": {"causal": False}}),
    "dflash_config.causal": (Shape(causal=(True, True)), {"dflash_config": {"causal": True}}),
    "sliding layers are causal": (
        Shape(causal=(True, False), windows=(5, 0)),
        {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 5, "use_sliding_window": True},
    ),
    "use_swa": (Shape(windows=(3, 3)), {"dflash_config": {"use_swa": True, "swa_window_size": 3}}),
    "sliding, told not causal": (
        Shape(windows=(5, 5)),
        {"layer_types": ["sliding_attention"] * 2, "sliding_window": 5, "is_causal": False},
    ),
    "interleaved": (Shape(interleaved=True, bias=True), {"is_neox_style": False}),
    "sinks and scale": (
        Shape(sinks=True, value_scale=0.7),
        {"dflash_config": {"attention_sink_bias": True, "attention_value_scale": 0.7}},
    ),
    "another theta": (Shape(theta=5e4), {}),
}


@torch.no_grad()
def filled(head: DFlash, inputs: DraftInput, streams: list[Tensor], masks: Tensor) -> Tensor:
    """Logits of every mask, after reading each group's streams in two parts."""
    from augury.drafters.rows import fresh_rows

    head.cache = KVCache.allocate(head.layer_shapes, 17 * BLOCK * len(streams), head.cache_dtype, torch.device("cpu"))
    for begin, end in ((0, 3), (3, 99)):
        starts = torch.tensor([min(begin, len(s)) for s in streams])
        ends = torch.tensor([min(end, len(s)) for s in streams])
        part = fresh_rows(inputs, starts, ends - starts)
        head.read(torch.cat([s[begin:end] for s in streams]), part.rows)
    return head.fill(*block_rows(inputs, masks, int(masks.max()), MASK))


@torch.no_grad()
def expected(formula: DFlashFormula, target: Target, streams: Tensor, newest: int, masks: int) -> Tensor:
    """The formula's hidden states of the masks."""
    embedded = target.embed(torch.tensor([newest] + [MASK] * masks))
    return formula(streams, embedded, Blocks.at([len(streams)], masks + 1))[1:]


@pytest.mark.parametrize("variant", VARIANTS)
def test_head_equals_its_formula(target: Target, tmp_path: Path, variant: str) -> None:
    shape, config = VARIANTS[variant]
    formula = written(shape, tmp_path, **config)
    head = DFlash.load(tmp_path, target, torch.float32, 128)
    assert head.features == (1, 2) and head.mask_token == MASK
    torch.manual_seed(1)
    streams = [torch.randn(length, 2 * 64) for length in (7, 12, 3)]
    history = torch.randint(0, 250, (3, 64))
    masks = torch.tensor([5, 6, 2])
    inputs = a_turn([8, 13, 4], history)
    logits = filled(head, inputs, streams, masks).view(3, 6, VOCAB)
    for g, count in enumerate(masks.tolist()):
        hidden = expected(formula, target, streams[g], int(history[g, len(streams[g])]), count)
        torch.testing.assert_close(logits[g, :count], target.project(hidden), atol=2e-4, rtol=2e-4)


def test_logit_scale_and_softcap(target: Target, tmp_path: Path) -> None:
    more = {"dflash_config": {"output_multiplier": 0.5, "final_logit_softcapping": 3.0}}
    formula = written(Shape(), tmp_path, **more)
    head = DFlash.load(tmp_path, target, torch.float32, 128)
    streams, inputs = [torch.randn(4, 128)], a_turn([5])
    logits = filled(head, inputs, streams, torch.tensor([3]))
    raw = target.project(expected(formula, target, streams[0], 0, 3))
    torch.testing.assert_close(logits, 3 * torch.tanh(raw * 0.5 / 3), atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize("nested", [False, True], ids=["bare", "table"])
def test_mask_embedding_beside_the_weights(target: Target, tmp_path: Path, nested: bool) -> None:
    formula = written(Shape(), tmp_path)
    mask = torch.randn(64)
    torch.save({"mask_token_id": MASK, "embedding": mask} if nested else mask[None], tmp_path / "mask_embedding.pt")
    head = DFlash.load(tmp_path, target, torch.float32, 128)
    streams = [torch.randn(6, 128)]
    logits = filled(head, a_turn([7]), streams, torch.tensor([3]))
    with torch.no_grad():
        embedded = torch.cat([target.embed(torch.tensor([0])), mask.expand(3, -1)])
        hidden = formula(streams[0], embedded, Blocks.at([6], 4))[1:]
    torch.testing.assert_close(logits, target.project(hidden), atol=2e-4, rtol=2e-4)


def speculators(
    shape: Shape, directory: Path, draft_vocab: int, **more: Any
) -> tuple[DFlashFormula, dict[str, Tensor]]:
    """The speculators layout: nested config, ids one higher, embeddings and a head of its own."""
    from safetensors.torch import save_file

    formula = shaken(DFlashFormula(shape))
    chosen = torch.randperm(VOCAB)[:draft_vocab].sort().values
    own = {
        "embed_tokens.weight": torch.randn(VOCAB, shape.hidden),
        "lm_head.weight": torch.randn(draft_vocab, shape.hidden),
        "d2t": chosen - torch.arange(draft_vocab),
        "t2d": torch.zeros(VOCAB, dtype=torch.bool).index_fill(0, chosen, True),
    }
    directory.mkdir(parents=True, exist_ok=True)
    save_file({**formula.state_dict(), **own}, directory / "model.safetensors")
    layer = published_config(shape, MASK, IDS)
    for name in ("dflash_config", "block_size", "auto_map", "architectures", "num_target_layers"):
        del layer[name]
    config = {
        "speculators_model_type": "dflash",
        "speculators_version": "0.3",
        "architectures": ["DFlashDraftModel"],
        "transformer_layer_config": layer,
        "block_size": 8,
        "mask_token_id": MASK,
        "draft_vocab_size": draft_vocab,
        "aux_hidden_state_layer_ids": [i + 1 for i in IDS],
        "sliding_window_non_causal": False,
        "speculators_config": {
            "algorithm": "dflash",
            "default_proposal_method": "greedy",
            "verifier": {"name_or_path": "toy"},
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 7}],
        },
    }
    (directory / "config.json").write_text(json.dumps(config))
    return formula, {**own, "targets": chosen}


@pytest.mark.parametrize("shape", [Shape(), replace(Shape(), hidden=48)], ids=["shared width", "width of its own"])
def test_speculators_layout_with_a_vocabulary_of_its_own(target: Target, tmp_path: Path, shape: Shape) -> None:
    formula, own = speculators(shape, tmp_path, 90)
    head = DFlash.load(tmp_path, target, torch.float32, 128)
    assert head.features == (1, 2) and not any(sight.causal for sight in head.config.sights)
    streams = [torch.randn(6, 128)]
    logits = filled(head, a_turn([7]), streams, torch.tensor([3]))
    with torch.no_grad():
        embedded = own["embed_tokens.weight"][[0, MASK, MASK, MASK]]
        hidden = formula(streams[0], embedded, Blocks.at([6], 4))[1:]
    torch.testing.assert_close(logits[:, own["targets"]], hidden @ own["lm_head.weight"].T, atol=2e-4, rtol=2e-4)
    rest = torch.ones(VOCAB, dtype=torch.bool).index_fill(0, own["targets"], False)
    assert (logits[:, rest] == float("-inf")).all()


def test_layers_of_checkpoints_that_name_none() -> None:
    assert default_layer_ids(5, 36) == [1, 9, 17, 25, 33]
    assert default_layer_ids(1, 24) == [12]


class Harmful:
    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("this must never be printed",)


def spoil(directory: Path, how: str) -> None:
    from safetensors.torch import load_file, save_file

    file, config = directory / "model.safetensors", json.loads((directory / "config.json").read_text())
    tensors = load_file(file)
    if how == "missing tensor":
        del tensors["layers.1.self_attn.k_norm.weight"], tensors["layers.1.self_attn.q_norm.weight"]
    elif how == "extra tensor":
        tensors["candidate_selector.weight"] = torch.zeros(2)
    elif how == "other layers":
        config["dflash_config"]["target_layer_ids"] = [0, 1, 1]
    elif how == "beyond the target":
        config["dflash_config"]["target_layer_ids"] = [0, 7]
    elif how == "vocabulary":
        config["vocab_size"] = 300
    elif how == "no mask":
        del config["dflash_config"]["mask_token_id"]
    elif how == "mask beyond":
        config["dflash_config"]["mask_token_id"] = 260
    elif how == "no window":
        config["layer_types"] = ["sliding_attention"] * 2
    elif how == "DFlash2":
        config["architectures"] = ["DFlash2DraftModel"]
    elif how == "anchor":
        config["sample_from_anchor"] = True
    elif how == "no head":
        config["draft_vocab_size"] = 90
    (directory / "config.json").write_text(json.dumps(config))
    save_file(tensors, file)
    if how == "truncated":
        file.write_bytes(file.read_bytes()[:-100])
    if how == "not json":
        (directory / "config.json").write_text("{")
    if how == "pickle":
        with (directory / "mask_embedding.pt").open("wb") as out:
            pickle.dump(Harmful(), out, protocol=2)
    if how == "mask of another width":
        torch.save(torch.zeros(63), directory / "mask_embedding.pt")


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("missing tensor", "missing: layers.1.self_attn.q_norm.weight, layers.1.self_attn.k_norm.weight"),
        ("extra tensor", "unexpected: candidate_selector.weight"),
        ("other layers", r"wrong shape: fc.weight is \[64, 128\], not \[64, 192\]"),
        ("beyond the target", "belongs to another target"),
        ("vocabulary", "trained on 300 tokens, the target has 260"),
        ("no mask", "names no mask token"),
        ("mask beyond", "mask token 260 is not among"),
        ("no window", "says how far"),
        ("DFlash2", "is a DFlash2 drafter"),
        ("anchor", "sample_from_anchor"),
        ("no head", "missing: d2t, lm_head.weight"),
        ("truncated", "cut short"),
        ("not json", "cannot be read"),
        ("pickle", "could run code"),
        ("mask of another width", "one vector of 64 numbers"),
    ],
)
def test_bad_checkpoints_are_refused(
    target: Target, tmp_path: Path, capsys: pytest.CaptureFixture[str], how: str, says: str
) -> None:
    written(Shape(), tmp_path)
    spoil(tmp_path, how)
    with pytest.raises(ModelError, match=says):
        DFlash.load(tmp_path, target, torch.float32, 128)
    assert "never be printed" not in capsys.readouterr().out
