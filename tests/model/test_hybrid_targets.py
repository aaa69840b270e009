"""Hybrid models of transformers through the adapter: chunks, trees and rows run again, against the model itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from agreement import LENGTH, check_every_way, check_features, check_tree, reference, tokens
from dense_cases import save_random
from hybrid_cases import DELTA, HYBRIDS, SIZES, save_hybrid
from hybrid_runs import SUFFIX_TREE, ask, engine
from rows import Segment, give_cache, make_rows, scattered_tables
from torch import Tensor
from transformers import JambaConfig, Lfm2Config, Qwen3_5TextConfig

from augury.model.errors import ModelError
from augury.model.load import load_target
from augury.model.mixers import HYBRIDS as TYPES
from augury.model.target import Target


@pytest.fixture(scope="module", params=HYBRIDS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Target, Any]:
    directory = tmp_path_factory.mktemp("hybrid")
    model = save_hybrid(request.param, directory)
    return load_target(directory), model


def test_scores_are_transformers_own(pair: tuple[Target, Any]) -> None:
    target, model = pair
    ids = tokens(LENGTH, target.vocab_size)
    expected, streams = reference(model, ids)
    assert target.state_shapes and target.layer_shapes
    check_every_way(target, model, expected, ids, 1e-4)
    check_tree(target, model, ids, 1e-4)
    check_features(target, streams, ids, 1e-4)


def test_accepted_nodes_are_run_again_and_rejected_ones_leave_no_trace(pair: tuple[Target, Any]) -> None:
    """The scores after a draft have the same bits as without one, whatever was accepted of it; a failed pass too."""
    target, _ = pair
    ids, wrong, tables = tokens(24, target.vocab_size), tokens(24, target.vocab_size, seed=5), scattered_tables(3)

    def run(*segments: Segment) -> Tensor:
        return target.forward(make_rows(list(segments), tables)).logits

    give_cache(target, 3)
    alone = torch.cat([run(Segment(1, i, [ids[i]])) for i in range(24)])
    for accepted in range(4):
        give_cache(target, 3)
        run(Segment(1, 0, ids[:9]))
        draft = ids[10 : 10 + accepted] + wrong[: 4 - accepted]
        for _ in range(2):  # as if the first time had failed
            company = Segment(0, 0, wrong[:3])
            drafted = run(company, Segment(1, 9, [ids[9]]), Segment(1, 10, draft, [-1, 0, 1, 2]))
        assert torch.equal(drafted[3 : 4 + accepted], alone[9 : 10 + accepted])
        following = 10 + accepted
        assert torch.equal(run(Segment(1, following, [ids[following]]))[0], alone[following])
        assert torch.equal(run(Segment(1, following + 1, ids[following + 1 :])), alone[following + 1 :])


def test_a_trees_accepted_path_goes_on(pair: tuple[Target, Any]) -> None:
    target, _ = pair
    ids, wrong, tables = tokens(20, target.vocab_size), tokens(20, target.vocab_size, seed=5), scattered_tables(2)
    give_cache(target, 2)
    alone = torch.cat([target.forward(make_rows([Segment(0, i, [ids[i]])], tables)).logits for i in range(20)])
    give_cache(target, 2)
    target.forward(make_rows([Segment(0, 0, ids[:8])], tables))
    draft, parents = [wrong[0], ids[9], wrong[1], ids[10], wrong[2], ids[11]], [-1, -1, 0, 1, 1, 3]
    rows = make_rows([Segment(0, 8, [ids[8]]), Segment(0, 9, draft, parents)], tables)
    scores = target.forward(rows).logits
    assert torch.equal(scores[[0, 2, 4, 6]], alone[8:12])
    path, cache = torch.tensor([[1, 3, 5, -1, -1, -1]]), target.cache
    assert cache.states is not None
    cache.states.keep_path(torch.tensor([0]), path)
    for step, node in enumerate((1, 3, 5)):
        cache.move(rows.write[1 + node : 2 + node], rows.write[1 + step : 2 + step])
    assert torch.equal(target.forward(make_rows([Segment(0, 12, ids[12:])], tables)).logits, alone[12:])


def test_a_saved_state_is_a_beginning(pair: tuple[Target, Any]) -> None:
    """Saved within a chunk, and within rows that are run again."""
    target, _ = pair
    ids, tables = tokens(20, target.vocab_size), scattered_tables(3)
    give_cache(target, 3)
    states = target.cache.states
    assert states is not None
    whole = target.forward(make_rows([Segment(0, 0, ids)], tables)).logits
    line = states.first_saved
    states.save_next([0], [7], [line])
    target.forward(make_rows([Segment(0, 0, ids[:10])], tables))
    target.forward(make_rows([Segment(0, 10, [ids[10]]), Segment(0, 11, ids[11:15], [-1, 0, 1, 2])], tables))
    states.save_next([0], [13], [line + 1])
    target.forward(make_rows([Segment(0, 15, ids[15:16])], tables))
    for length, saved in ((7, line), (13, line + 1)):
        tables[1] = tables[0]  # as the prefix cache would
        states.restore(1, saved, length)
        assert torch.equal(target.forward(make_rows([Segment(1, length, ids[length:])], tables)).logits, whole[length:])


def test_the_reference_scores_alike(pair: tuple[Target, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """What runs where there is no CPU kernel."""
    target, model = pair
    ids = tokens(LENGTH, target.vocab_size)
    monkeypatch.setattr("augury.kernels.faces.asked", lambda: "torch")
    check_every_way(target, model, reference(model, ids)[0], ids, 1e-4)
    check_tree(target, model, ids, 1e-4)


def test_a_state_that_is_not_there_is_an_error(pair: tuple[Target, Any]) -> None:
    target, _ = pair
    give_cache(target, 1)
    with pytest.raises(RuntimeError, match="state is missing"):
        target.forward(make_rows([Segment(0, 5, [7])], scattered_tables(1)))


def test_other_recurrent_families_are_refused_by_name(tmp_path: Path) -> None:
    JambaConfig(vocab_size=101, hidden_size=32, num_hidden_layers=4).save_pretrained(tmp_path)
    with pytest.raises(
        ModelError, match=r"'jamba'.*\(linear_attention\) of an unsupported kind.* sort: bamba, .*qwen3_next"
    ):
        load_target(tmp_path)


def test_one_token_convolutions_are_refused(tmp_path: Path) -> None:
    save_random(Lfm2Config(**SIZES, layer_types=["conv", "full_attention"] * 2, conv_L_cache=1), tmp_path)
    with pytest.raises(ModelError, match="'lfm2' cannot run here: its convolutions see one token"):
        load_target(tmp_path)


@pytest.mark.parametrize(
    "config",
    [
        Lfm2Config(**SIZES, layer_types=["conv"] * 4, conv_L_cache=2),
        Qwen3_5TextConfig(
            **{**SIZES, **DELTA, "linear_key_head_dim": 7, "linear_value_head_dim": 9, "linear_num_value_heads": 6},
            layer_types=["linear_attention"] * 4,
        ),
    ],
    ids=["conv", "delta"],
)
def test_models_without_attention(config: Any, tmp_path: Path) -> None:
    """Nothing is cached by token, and `generate` has no cache for them: token by token without one is the oracle."""
    model = save_random(config, tmp_path)
    llm = engine(tmp_path, speculative_config=SUFFIX_TREE)
    prompt = tokens(9, 101)
    want = list(prompt)
    with torch.no_grad():
        for _ in range(12):
            want.append(int(model(torch.tensor([want]), use_cache=False).logits[0, -1].argmax()))
    for _ in range(2):
        assert ask(llm, [prompt], new=12) == [want[9:]]
    stats = llm.engine.stats
    assert stats.prefix_cache_hits == 8 and stats.spec.num_accepted_tokens > 0


def test_a_layer_that_computes_otherwise_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A release of transformers that changes a family's layer must not change its text in silence."""
    save_hybrid("qwen3.5", tmp_path)
    from transformers.models.qwen3_5 import modeling_qwen3_5 as theirs

    original = theirs.l2norm
    monkeypatch.setattr(theirs, "l2norm", lambda x, dim=-1, eps=1e-6: original(x, dim, eps) * 1.1)
    with pytest.raises(ModelError, match="Qwen3_5GatedDeltaNet of this transformers"):
        load_target(tmp_path)


def test_the_page_has_every_family() -> None:
    """It is made by running them all, which takes minutes: tests/helpers/family_table.py."""
    page = (Path(__file__).parents[2] / "docs" / "families.md").read_text()
    assert [name for name in TYPES if f"`{name}`" not in page] == [] and "differs" not in page
