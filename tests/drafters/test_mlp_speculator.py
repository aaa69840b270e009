"""MLP and LSTM speculators: heads against their formulas, every published layout."""

from __future__ import annotations

import os
import pickle
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from formulas_mlp import LSTM, Recurrent, fused
from gate import write
from mlp_cases import DEVICE, INNER, SIZE, STEPS, VOCABULARY, Tensors, arctic, config, drafted, mlp, scattered
from torch import Tensor

from augury import LLM
from augury.model.errors import ModelError
from augury.model.heads.mlp import load_speculator
from augury.model.heads.mlp_parts import RecurrentSpeculator
from augury.model.load import load_target

pytestmark = pytest.mark.usefixtures("one_thread_throughout")


@pytest.fixture(scope="module")
def target(toy_model: Path) -> Any:
    return load_target(toy_model, "float32", "cpu")


def load(directory: Path, target: Any, steps: int = STEPS) -> RecurrentSpeculator:
    return load_speculator(directory, target, torch.float32, steps)


def hidden(rows: int = 5) -> Tensor:
    return torch.randn(rows, SIZE, generator=torch.Generator().manual_seed(9)) * 3


def fed(rows: int = 5) -> Tensor:
    return torch.randint(0, VOCABULARY, (STEPS, rows), generator=torch.Generator().manual_seed(8))


def run(head: RecurrentSpeculator, steps: int = STEPS) -> Tensor:
    """Logits [steps, T, V] with the same tokens fed to everyone."""
    state, lines = head.begin(hidden()), []
    for i in range(steps):
        logits, state = head.step(i, state, fed()[i])
        lines.append(logits)
    return torch.stack(lines)


def same(found: Tensor, module: Recurrent) -> None:
    wanted = module.scores(hidden(), fed()).detach()[: len(found)]
    torch.testing.assert_close(found, wanted, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("inner", [0, INNER])
def test_every_variant_is_its_formula(tmp_path: Path, target: Any, tied: bool, scaled: bool, inner: int) -> None:
    module = mlp(tied, scaled, inner)
    directory = write(tmp_path, module.state_dict(), config(tied, scaled, inner))
    same(run(load(directory, target)), module)
    same(run(load(directory, target, 1), 1), module)  # fewer guesses than it was trained for


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("tied_emb", [False, True])
def test_lstm_is_its_formula(tmp_path: Path, target: Any, tied_emb: bool, scaled: bool) -> None:
    module = scattered(LSTM(STEPS, SIZE, INNER, VOCABULARY, tied_emb, scaled))
    directory = write(tmp_path, module.state_dict(), arctic(tie_lstm_embs=tied_emb, scale_input=scaled))
    same(run(load(directory, target)), module)


def test_one_guess_alone(tmp_path: Path, target: Any) -> None:
    module = mlp(n=1)
    found = run(load(write(tmp_path, module.state_dict(), config(n_predict=1)), target, 1), 1)
    torch.testing.assert_close(found, module.scores(hidden(), fed()).detach(), atol=1e-3, rtol=1e-3)


def test_every_published_layout_loads_alike(tmp_path: Path, target: Any) -> None:
    module = mlp()
    tensors = module.state_dict()
    nested = {re.sub(r"^(emb|proj|ln)\.(\d+)\.", r"\1.\2.0.", name): t for name, t in tensors.items()}
    layouts = {
        "plain": write(tmp_path / "a", tensors, config()),
        "ibm": write(tmp_path / "b", {f"speculator.{n}": t for n, t in tensors.items()}, config()),
        "pickled": write(tmp_path / "c", tensors, config(), "pytorch_model.bin"),
        "arctic rnn": write(tmp_path / "d", nested, arctic("sum_rnn", tie_weights=False, scale_input=False)),
    }
    assert "emb.1.0.weight" in nested and "ln.2.0.bias" in nested
    first = run(load(layouts["plain"], target))
    same(first, module)
    for name, directory in layouts.items():
        assert torch.equal(run(load(directory, target)), first), name


def test_tied_weights_are_found_under_any_number(tmp_path: Path, target: Any) -> None:
    module = mlp(tied=True)
    whole = module.state_dict()
    once = {n: t for n, t in whole.items() if n.split(".")[1] == "0" or n.startswith("proj.1")}
    later = {n: t for n, t in whole.items() if n.split(".")[1] == "2" or n.startswith("proj.0")}
    places = [write(tmp_path / str(i), part, config(tied=True)) for i, part in enumerate((whole, once, later))]
    results = [run(load(place, target)) for place in places]
    same(results[0], module)
    assert all(torch.equal(found, results[0]) for found in results)
    with pytest.raises(ModelError, match=r"says tie_weights, but emb.1.weight differs from emb.0.weight"):
        load(write(tmp_path / "not", mlp().state_dict(), config(tied=True)), target)


def test_lstm_layouts_load_alike(tmp_path: Path, target: Any) -> None:
    module = scattered(LSTM(STEPS, SIZE, INNER, VOCABULARY, True, True))
    whole = module.state_dict()
    lean = {n: t for n, t in whole.items() if n[:5] not in ("input", "outpu", "cell_") or "emb" not in n}
    lean = {n: t for n, t in lean.items() if n not in ("head.1.weight", "head.0.weight")}
    layouts = [whole, fused(whole), lean, fused(lean), {f"speculator.{n}": t for n, t in whole.items()}]
    places = [write(tmp_path / str(i), tensors, arctic()) for i, tensors in enumerate(layouts)]
    results = [run(load(place, target)) for place in places]
    same(results[0], module)
    assert all(torch.equal(found, results[0]) for found in results)


class Evil:
    """A pickle that would run code."""

    def __reduce__(self) -> Any:
        return os.system, ("true",)


def test_bad_speculators_are_refused(tmp_path: Path, target: Any) -> None:
    good = mlp().state_dict()
    gated = scattered(LSTM(STEPS, SIZE, INNER, VOCABULARY, True, True)).state_dict()
    count = iter(range(99))

    def broken(tensors: Tensors, raw: dict[str, Any], *lost: str, **more: Tensor) -> Path:
        kept = {name: t for name, t in tensors.items() if name not in lost}
        return write(tmp_path / str(next(count)), kept | more, raw)

    def lacking(raw: dict[str, Any], key: str) -> dict[str, Any]:
        return {name: value for name, value in raw.items() if name != key}

    cases = [
        (broken(good, config(), "proj.1.weight"), "missing: proj.1.weight"),
        (broken(good, config(), "ln.0.bias"), "missing: ln.0.bias"),
        (broken(good, config(), more=torch.zeros(1)), "unexpected: more"),
        (broken(good, config(inner=40)), r"emb.0.weight is \[260, 48\], not \[260, 40\]"),
        (broken(good, config(n_predict=2)), "no weights for guess 3.*to 2 or less"),
        (broken(good, config(emb_dim=128)), "made for a hidden size of 128, the target has 64"),
        (broken(good, config(vocab_size=300)), "made for a vocabulary of 300, the target has 260"),
        (broken(good, config(emb_dim="64.64")), "several layers"),
        (broken(good, lacking(config(), "n_predict")), "n_predict must be"),
        (broken(good, lacking(config(), "vocab_size")), "vocab_size must be"),
        (broken(good, lacking(config(), "emb_dim")), "emb_dim=None must be"),
        (broken(good, config(method="sum_gru")), "method 'sum_gru' is unknown"),
        (broken(gated, arctic(tie_weights=False)), "with tie_weights only"),
        (broken(gated, arctic(proj_dim="96")), "proj_dim='96' must equal inner_dim=48"),
        (broken(gated, arctic(input_hidden_dim=128)), "hidden size of 128"),
        (broken(gated, arctic(), "cell_proj.1.weight"), "missing: cell_proj.1.weight"),
        (broken(gated, arctic(), "state_ln.0.weight"), "missing: state_ln.0.weight"),
    ]
    cut = broken(good, config()) / "model.safetensors"
    cut.write_bytes(cut.read_bytes()[:1000])
    evil = write(tmp_path / "evil", {}, config(), "pytorch_model.bin") / "pytorch_model.bin"
    evil.write_bytes(pickle.dumps({"emb.0.weight": Evil()}, protocol=2))
    cases += [(cut.parent, "cut short"), (evil.parent, "could run code")]
    for directory, says in cases:
        with pytest.raises(ModelError, match=says):
            load(directory, target)


def test_it_is_not_run_again_on_itself(toy_model: Path, tmp_path: Path) -> None:
    directory = write(tmp_path, mlp().state_dict(), config())
    with pytest.raises(ValueError, match="n_predict=3 tokens and has no weights for guess 4"):
        drafted(toy_model, directory, num_speculative_tokens=6)
    with pytest.raises(ValueError, match="300 best tokens; there are 260"):
        drafted(toy_model, directory, num_speculative_tokens=1, speculative_token_tree="[(299,)]")


@pytest.fixture(scope="module")
def plain(toy_model: Path) -> LLM:
    return LLM(str(toy_model), device=DEVICE, max_model_len=256)
