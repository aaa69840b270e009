"""MLP and LSTM speculators: heads against their formulas, every published layout, trees, real life, the gate."""

from __future__ import annotations

import json
import os
import pickle
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from formulas_mlp import LSTM, MLP, Recurrent, fused
from gate import Studied, overfit
from generating import ids
from safetensors.torch import save_file
from torch import Tensor, nn

from augury import LLM, SamplingParams
from augury.model.errors import ModelError
from augury.model.heads.mlp import Speculator, load_speculator
from augury.model.load import load_target
from augury.model.target import NORMED

pytestmark = pytest.mark.usefixtures("one_thread_throughout")

DEVICE = os.environ.get("AUGURY_TEST_DEVICE", "cpu")
PROMPTS = ["abcabcabc", "hello hello", "z", "the cat sat on the mat and the cat sat", "12121", "qqqq", "x y x y", "end"]
STEPS, SIZE, INNER, VOCABULARY = 3, 64, 48, 260
LITERAL = "[(0,), (1,), (2,), (0, 0), (0, 1), (1, 1), (0, 0, 0), (1, 1, 0), (0, 1, 2)]"
# The written paths with the best ranks first, as drafts have them.
ORDERED = [(0,), (0, 0), (0, 0, 0), (1,), (0, 1), (2,), (1, 1), (1, 1, 0), (0, 1, 2)]

Tensors = dict[str, Tensor]


def scattered(module: Any, seed: int = 3) -> Any:
    """The module with weights that matter everywhere."""
    torch.manual_seed(seed)
    for name, tensor in module.named_parameters():
        nn.init.normal_(tensor, 1.0 if "ln" in name and name.endswith("weight") else 0.0, 0.2)
    return module


def mlp(tied: bool = False, scaled: bool = False, inner: int = INNER, n: int = STEPS) -> Any:
    return scattered(MLP(n, SIZE, inner or SIZE, VOCABULARY, tied, scaled))


def config(tied: bool = False, scaled: bool = False, inner: int = INNER, **more: Any) -> dict[str, Any]:
    """As IBM writes it."""
    return {
        "model_type": "mlp_speculator", "architectures": ["MLPSpeculatorPreTrainedModel"], "emb_dim": SIZE,
        "inner_dim": inner, "n_predict": STEPS, "vocab_size": VOCABULARY, "tie_weights": tied, "scale_input": scaled,
        "top_k_tokens_per_head": [4, 3, 2], "n_candidates": 5, **more,
    }  # fmt: skip


def arctic(kind: str = "sum_lstm", **more: Any) -> dict[str, Any]:
    """As Arctic writes it: widths are texts."""
    return {
        "model_type": "mlp_speculator", "architectures": ["ArcticLSTMSpeculatorPreTrainedModel"], "method": kind,
        "input_hidden_dim": SIZE, "inner_dim": str(INNER), "emb_dim": str(INNER), "proj_dim": str(INNER),
        "n_predict": STEPS, "vocab_size": VOCABULARY, "tie_weights": True, "scale_input": True, "tie_lstm_embs": True,
        **more,
    }  # fmt: skip


def write(directory: Path, tensors: Tensors, raw: dict[str, Any], file: str = "model.safetensors") -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(raw))
    tensors = {name: tensor.detach().clone().contiguous() for name, tensor in tensors.items()}
    if file.endswith(".safetensors"):
        save_file(tensors, directory / file, {"format": "pt"})
    else:
        torch.save(tensors, directory / file)
    return directory


@pytest.fixture(scope="module")
def target(toy_model: Path) -> Any:
    return load_target(toy_model, "float32", "cpu")


@pytest.fixture(scope="module")
def studied(toy_model: Path) -> Studied:
    return Studied(toy_model, [[64, 65, 66, 67], [70, 71, 72]], 40)


def load(directory: Path, target: Any, steps: int = STEPS) -> Speculator:
    return load_speculator(directory, target, torch.float32, steps)


def hidden(rows: int = 5) -> Tensor:
    return torch.randn(rows, SIZE, generator=torch.Generator().manual_seed(9)) * 3


def fed(rows: int = 5) -> Tensor:
    return torch.randint(0, VOCABULARY, (STEPS, rows), generator=torch.Generator().manual_seed(8))


def run(head: Speculator, steps: int = STEPS) -> Tensor:
    """Logits [steps, T, V] with the same tokens fed to everyone."""
    state, lines = head.begin(hidden()), []
    for i in range(steps):
        logits, state = head.step(i, state, fed()[i])
        lines.append(logits)
    return torch.stack(lines)


def same(found: Tensor, module: Recurrent) -> None:
    wanted = module.scores(hidden(), fed()).detach()[: len(found)]
    torch.testing.assert_close(found, wanted, atol=1e-3, rtol=1e-3)


# --- formula -------------------------------------------------------------------------------------------------------


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


# --- checkpoints ---------------------------------------------------------------------------------------------------


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


# --- real life -----------------------------------------------------------------------------------------------------


def overfitted(module: Recurrent, studied: Studied) -> Any:
    """Guess i says what stands i + 2 places on, fed with the text itself."""
    data = [(studied.streams(text, (NORMED,)), torch.tensor(text)) for text in studied.texts]

    def loss() -> Tensor:
        parts = []
        for streams, text in data:
            places = len(text) - STEPS - 1
            said = torch.stack([text[i : i + places] for i in range(STEPS + 2)])
            logits = module.scores(streams[:places], said[1:])
            parts.append(F.cross_entropy(logits.flatten(0, 1), said[2:].flatten()))
        return torch.stack(parts).mean()

    overfit(module, loss, 250)
    return module


@pytest.fixture(scope="module")
def modules(studied: Studied) -> dict[str, Any]:
    torch.manual_seed(4)
    return {
        "mlp": overfitted(MLP(STEPS, SIZE, INNER, VOCABULARY, False, False), studied),
        "tied": overfitted(MLP(STEPS, SIZE, INNER, VOCABULARY, True, True), studied),
        "lstm": overfitted(LSTM(STEPS, SIZE, INNER, VOCABULARY, True, True), studied),
    }


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, modules: dict[str, Any]) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("speculators")
    raw = {"mlp": config(), "tied": config(tied=True, scaled=True), "lstm": arctic()}
    return {kind: write(root / kind, module.state_dict(), raw[kind]) for kind, module in modules.items()}


@pytest.fixture(scope="module")
def plain(toy_model: Path) -> LLM:
    return LLM(str(toy_model), device=DEVICE, max_model_len=256)


def drafted(toy_model: Path, head: Path, options: dict[str, Any] | None = None, **spec: Any) -> LLM:
    wanted = {"method": "mlp_speculator", "model": str(head), "num_speculative_tokens": STEPS, **spec}
    return LLM(str(toy_model), device=DEVICE, **{"max_model_len": 256, **(options or {})}, speculative_config=wanted)


SHAPES: dict[str, dict[str, Any]] = {
    "chain": {},
    "written tree": {"speculative_token_tree": LITERAL, "num_speculative_tokens": 9},
    "best-first tree": {"tree": {"max_nodes": 14, "top_k": 4}},
}


@pytest.mark.parametrize(("kind", "shape"), [("mlp", "chain"), ("lstm", "written tree"), ("tied", "best-first tree")])
@pytest.mark.parametrize(
    "options",
    [{}, {"max_num_seqs": 1}, {"max_num_seqs": 4, "long_prefill_token_threshold": 5}, {"block_size": 4},
     {"num_gpu_blocks_override": 20, "max_num_seqs": 8}],
    ids=lambda s: ",".join(f"{k}={v}" for k, v in s.items()) or "as it comes",
)  # fmt: skip
def test_text_is_that_of_plain_decoding(
    toy_model: Path, trained: dict, studied: Studied, plain: LLM, options: dict, kind: str, shape: str
) -> None:
    llm = drafted(toy_model, trained[kind], options, **SHAPES[shape])
    known = [{"prompt_token_ids": studied.texts[0][:n]} for n in (4, 21)]  # text on which drafts are right
    prompts = [*known, *PROMPTS[: 1 if options.get("max_num_seqs") == 1 else 6]]
    for temperature in (0.0, 0.7):
        params = [SamplingParams(temperature=temperature, seed=i, max_tokens=30, ignore_eos=True) for i in range(8)]
        params = params[: len(prompts)]
        want = ids(plain, prompts, params)
        assert ids(llm, prompts, params) == want  # cold
        assert ids(llm, prompts, params) == want  # and from the prefix cache
    assert llm.engine.stats.spec.accepted_per_pos[-1] > 0  # whole drafts were taken
    assert llm.engine.stats.prefix_cache_hits > 0
    if "num_gpu_blocks_override" in options:
        assert llm.engine.stats.preemptions > 0


@pytest.mark.parametrize("rule", ["standard", "block"])
def test_lossless_rules_are_coupled(toy_model: Path, trained: dict, plain: LLM, rule: str) -> None:
    """Drafts are never sampled, so no lossless rule accepts more."""
    llm = drafted(toy_model, trained["lstm"], rejection_sample_method=rule)
    for temperature in (0.0, 0.8):
        params = [SamplingParams(temperature=temperature, seed=i, max_tokens=20, ignore_eos=True) for i in range(8)]
        assert ids(llm, PROMPTS, params) == ids(plain, PROMPTS, params)


def path_scores(module: Recurrent, start: Tensor, newest: int, path: list[int]) -> Tensor:
    """Log-probabilities [V] of what follows a path of tokens."""
    state = module.start(start)
    for i, token in enumerate([newest, *path]):
        logits, state = module.guess(i, state, torch.tensor([token]))
    return logits[0].log_softmax(0).detach()


def beam(module: Recurrent, start: Tensor, newest: int, top_k: int, nodes: int) -> list[float]:
    """The likeliest paths that grow from the top_k best of every depth, one path at a time."""
    found, level = [], [([], 0.0)]
    for _ in range(STEPS):
        grown = []
        for path, chance in level:
            best = path_scores(module, start, newest, path).topk(top_k)
            pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
            grown += [([*path, token], chance + value) for token, value in pairs]
        level = sorted(grown, key=lambda entry: -entry[1])[:top_k]
        found += [chance for _, chance in grown]
    return sorted(found, reverse=True)[:nodes]


@pytest.mark.parametrize("kind", ["mlp", "lstm"])
@pytest.mark.parametrize("shape", SHAPES)
def test_drafts_are_the_formula_on_the_last_accepted_state(
    toy_model: Path, studied: Studied, modules: dict, trained: dict, shape: str, kind: str
) -> None:
    """Step after step, whatever was accepted: state and newest token are those of a fresh pass over the text."""
    llm, module = drafted(toy_model, trained[kind], {"block_size": 128}, **SHAPES[shape]), modules[kind]
    asked = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
    request = llm._requests("x", studied.texts[0][:24], asked)[0]
    llm.engine.add(request)
    lengths = []
    for _ in range(10):
        llm.engine.step()
        lengths.append(request.length)
        start, newest = studied.streams(request.tokens[:-1], (NORMED,))[-1:], request.tokens[-1]
        pending = llm.engine.state.draft
        tokens, parents = pending.tokens[request.slot].tolist(), pending.parents[request.slot].tolist()
        assert pending.count[request.slot] == len(tokens)
        paths, logs = [], []
        for n, (token, parent) in enumerate(zip(tokens, parents, strict=True)):
            assert parent < n
            above = paths[parent] if parent >= 0 else []
            law = path_scores(module, start, newest, above)
            paths.append([*above, token])
            logs.append(float(law[token]) + (logs[parent] if parent >= 0 else 0.0))
            if shape == "chain":
                assert parent == n - 1 and token == int(law.argmax())
            if shape == "written tree":
                assert len(paths[n]) == len(ORDERED[n]) and token == int(law.argsort(descending=True)[ORDERED[n][-1]])
        assert len({tuple(path) for path in paths}) == len(paths)
        if shape == "best-first tree":
            assert logs == pytest.approx(beam(module, start, newest, 4, 14), abs=1e-3)
    llm.engine.abort(request)
    gains = {after - before for before, after in pairwise(lengths)}
    assert STEPS + 1 in gains and len(gains) > 1  # some drafts were right, some were not


@pytest.mark.parametrize("kind", ["mlp", "tied", "lstm"])
@pytest.mark.parametrize("shape", ["chain", "best-first tree"])
def test_the_gate_a_trained_head_is_accepted_whole(
    toy_model: Path, trained: dict, studied: Studied, kind: str, shape: str
) -> None:
    """Train, export, load through the public path: on the text it was trained on the drafts are right."""
    llm = drafted(toy_model, trained[kind], **SHAPES[shape])
    gains: list[int] = []
    for text, start in zip(studied.texts, (4, 3), strict=True):
        request = llm._requests("x", text[:start], SamplingParams(temperature=0, max_tokens=40, ignore_eos=True))[0]
        llm.engine.add(request)
        llm.engine.step()
        gains.append(llm.engine.step()[0].accepted)  # the first block
        while llm.engine.busy:
            llm.engine.step()
        assert request.tokens == text
    assert gains == [STEPS] * 2
    spec = llm.engine.stats.spec
    assert spec.acceptance_length > 3.3, spec  # 4 at most, and chance gives 1.004
    print(f"{kind} {shape}: {spec.accepted_per_pos} of {spec.num_drafts}, length {spec.acceptance_length:.2f}")


def test_limits_are_kept(toy_model: Path, trained: dict, plain: LLM) -> None:
    """A drafter with less context steps aside, fewer guesses than it can make, and trees with room to spare."""
    params = SamplingParams(temperature=0, max_tokens=50, ignore_eos=True)
    want = ids(plain, PROMPTS, params)
    free = drafted(toy_model, trained["mlp"])
    for spec in ({"max_model_len": 24}, {"num_speculative_tokens": 2}, {"tree": {"max_nodes": 63, "top_k": 1}}, {}):
        llm = drafted(toy_model, trained["mlp"], **spec) if spec else free
        assert ids(llm, PROMPTS, params) == want
        if "max_model_len" in spec:
            short = llm.engine.stats.spec.num_drafts
        if "tree" in spec:
            narrow = llm.engine.stats.spec.num_accepted_tokens
    assert 0 < short < free.engine.stats.spec.num_drafts / 2
    assert narrow == free.engine.stats.spec.num_accepted_tokens > 0  # one child a node is a chain
