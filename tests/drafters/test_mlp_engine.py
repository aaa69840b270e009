"""MLP and LSTM speculators in real life: text, trees, drift, contexts, and the gate."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from formulas_mlp import LSTM, MLP, Recurrent
from gate import Studied, first_blocks, overfit, write
from generating import held_to_plain, ids, plainly
from mlp_cases import DEVICE, INNER, SIZE, STEPS, VOCABULARY, arctic, config, drafted
from stepping import whole_step
from torch import Tensor

from augury import LLM, SamplingParams
from augury.model.target import NORMED

pytestmark = pytest.mark.usefixtures("one_thread_throughout")
PROMPTS = ["abcabcabc", "hello hello", "z", "the cat sat on the mat and the cat sat", "12121", "qqqq", "x y x y", "end"]
LITERAL = "[(0,), (1,), (2,), (0, 0), (0, 1), (1, 1), (0, 0, 0), (1, 1, 0), (0, 1, 2)]"
# The written paths with the best ranks first, as drafts have them.
ORDERED = [(0,), (0, 0), (0, 0, 0), (1,), (0, 1), (2,), (1, 1), (1, 1, 0), (0, 1, 2)]


@pytest.fixture(scope="module")
def studied(toy_model: Path) -> Studied:
    return Studied(toy_model, [[64, 65, 66, 67], [70, 71, 72]], 40)


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

    overfit(module, loss, 130)
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


SHAPES: dict[str, dict[str, Any]] = {
    "chain": {},
    "written tree": {"speculative_token_tree": LITERAL, "num_speculative_tokens": 9},
    "best-first tree": {"tree": {"max_nodes": 14, "top_k": 4}},
}


@pytest.mark.parametrize(("kind", "shape"), [("mlp", "chain"), ("lstm", "written tree"), ("tied", "best-first tree")])
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
    toy_model: Path, trained: dict, studied: Studied, plain: LLM, options: dict, kind: str, shape: str
) -> None:
    llm = drafted(toy_model, trained[kind], options, **SHAPES[shape])
    known = [{"prompt_token_ids": studied.texts[0][:n]} for n in (4, 21)]  # text on which drafts are right
    prompts = [*known, *PROMPTS[: 1 if options.get("max_num_seqs") == 1 else 6]]
    held_to_plain(llm, plain, prompts)
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
        assert ids(llm, PROMPTS, params) == plainly(plain, PROMPTS, params)


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
        whole_step(llm.engine)
        lengths.append(request.length)
        start, newest = studied.streams(request.tokens[:-1], (NORMED,))[-1:], request.tokens[-1]
        pending = llm.engine.state.draft
        nodes = llm.engine.runner.nodes  # the pending draft has room for a prediction, too
        tokens, parents = (t[request.slot, :nodes].tolist() for t in (pending.tokens, pending.parents))
        assert pending.count[request.slot] == nodes
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
    assert first_blocks(llm, studied) == [STEPS] * 2
    spec = llm.engine.stats.spec
    assert spec.acceptance_length > 3.3, spec  # 4 at most, and chance gives 1.004
    print(f"{kind} {shape}: {spec.accepted_per_pos} of {spec.num_drafts}, length {spec.acceptance_length:.2f}")


def test_limits_are_kept(toy_model: Path, trained: dict, plain: LLM) -> None:
    """A drafter with less context steps aside, fewer guesses than it can make, and trees with room to spare."""
    params = SamplingParams(temperature=0, max_tokens=50, ignore_eos=True)
    want = plainly(plain, PROMPTS, params)
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
