"""The kernels of a step, Triton's (interpreted on a CPU) and numba's, against the torch code they stand for."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

pytest.importorskip("triton")
import interpreter  # noqa: F401
from step_cases import DEVICE, FACES, TOKENS, Pass, passes, quick, slot_tables, with_face

from augury.engine import rows, settle
from augury.engine.resume import resume
from augury.engine.rows import PassLayout, Segments
from augury.engine.scheduled import CONTINUES
from augury.kernels import layout_triton, move_triton, top, verify, walk_numba, walk_triton
from augury.kernels.slot_tables import Walked
from augury.verify.lossy import synthetic_walk
from augury.verify.sampling import Outcome
from augury.verify.tree import Draft, listed, shape_of
from augury.verify.verdict import uniforms


@pytest.fixture(autouse=True)
def short_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small enough that the prompts here have several."""
    monkeypatch.setattr(layout_triton, "CHUNK", 8)


@pytest.mark.parametrize("face", FACES)
@quick(30)
@given(passes())
def test_the_layout_is_the_references(face: str, case: Pass) -> None:
    expected = rows._with_torch(*case, 4)
    for mine, reference in zip(with_face(face, rows._in_one_kernel, *case, 4), expected, strict=True):
        assert torch.equal(mine, reference)


@quick(40)
@given(passes(), st.data())
def test_lines_have_the_masks_of_the_reference(case: Pass, data: st.DataObject) -> None:
    """A root has the first mask of its slot, nodes those after it, everything else none."""
    state, table, shape = case
    state.make_masks()
    assert state.masks is not None
    for slot in range(state.padding_slot):
        if data.draw(st.booleans()):
            state.masks.begin[slot] = slot * state.masks.each
    layout = with_face("torch", rows.lay_out, state, table, shape, shape.logits_rows, 4)
    mine = with_face("triton", rows.lay_out, state, table, shape, shape.logits_rows, 4)
    assert layout.draws.masks is not None and mine.draws.masks is not None
    assert torch.equal(mine.draws.masks.rows, layout.draws.masks.rows)
    expected = [-1] * shape.logits_rows
    for group, (slot, *_, nodes, _scored, active, _, _) in enumerate(table.T.tolist()):
        root, begin = int(layout.first[group]), int(state.masks.begin[slot])
        if active and begin >= 0:
            expected[root : root + 1 + nodes] = range(begin, begin + 1 + nodes)
    assert layout.draws.masks.rows.tolist() == expected


def test_a_chain_is_laid_out_without_looking_at_its_parents() -> None:
    """`branching` spares the kernel the tree; for chains both ways agree."""
    state = rows.SlotState.allocate(2, 30, 5, 4, 9, DEVICE)
    table = torch.tensor([[0, 1], [3, 8], [1, 1], [5, 2], [1, 1], [1, 1], [30, 30], [5, 5]], device=DEVICE)
    shapes = [rows.StepShape(2, 10, 10, 32, True, True, True, branching) for branching in (False, True)]
    chain, tree = (with_face("triton", rows._in_one_kernel, state, table, shape, 4) for shape in shapes)
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(chain, tree, strict=True))


def judged(case: Pass, layout: PassLayout, drawn: Tensor, rates: Tensor | None) -> Outcome:
    """The reference's walk."""
    if rates is None:
        return verify.walk(drawn, layout.first, layout.draft)
    seeds, depth = case.state.sampling.seed[case.table[0]], shape_of(layout.draft.parents)[0]
    tests = uniforms(seeds, layout.ends[:, None] - 1 + depth, layout.draft.tokens.shape[1])
    return synthetic_walk(drawn, layout.first, layout.draft, tests, rates)


def walked_by(
    face: str, drawn: Tensor, layout: PassLayout, mine: Pass, rates: Tensor | None, limits: settle.DraftLimits
) -> Walked:
    """The one kernel after the draw; numba's knows no rates."""
    slots, first, draft = slot_tables(mine.state), layout.first, layout.draft
    if face == "numba":
        return walk_numba.walk(drawn, first, draft, mine.table, slots, *limits)
    return walk_triton.walk(drawn, first, draft, mine.table, slots, rates, *limits)


@pytest.mark.parametrize("face", FACES)
@quick(60)
@given(passes(), st.data())
def test_walk_append_and_budget_are_the_references(face: str, case: Pass, data: st.DataObject) -> None:
    state, table, shape = case
    layout = with_face("torch", rows.lay_out, state, table, shape, shape.logits_rows, 4)
    drawn = torch.randint(0, TOKENS, (shape.logits_rows,)).to(DEVICE)
    chances = (
        None
        if face == "numba"
        else data.draw(st.none() | st.lists(st.sampled_from([0.0, 0.5, 0.9, 1.0]), min_size=1, max_size=5))
    )
    rates = None if chances is None else torch.tensor(chances, dtype=torch.float64, device=DEVICE)
    limits = settle.DraftLimits(data.draw(st.sampled_from([0, 3])), shape.branching)
    mine, seg = deepcopy(state), Segments.pack(table)
    expected = judged(case, layout, drawn, rates)
    state.append(seg.slots, layout.ends, expected)
    lengths = layout.ends + expected.emitted_count
    state.note_lengths(seg.slots, lengths, expected)

    walked = walked_by(face, drawn, layout, case._replace(state=mine), rates, limits)
    accepted, emitted = walked.summary[:, 0], walked.summary[:, 1]
    assert torch.equal(accepted, expected.accepted) and torch.equal(emitted, expected.emitted_count)
    assert torch.equal(walked.summary[:, 2:], expected.emitted) and torch.equal(walked.path, expected.path)
    assert torch.equal(walked.lengths, lengths)
    assert torch.equal(mine.length[:-1], state.length[:-1]) and torch.equal(mine.alive[:-1], state.alive[:-1])
    assert torch.equal(walked.budget, settle._budget(expected, lengths, state.limit[seg.slots], seg, limits))
    assert torch.equal(mine.history[:, :-1], state.history[:, :-1])  # the last column takes what means nothing
    if mine.sampling.counts is not None and state.sampling.counts is not None:
        assert torch.equal(mine.sampling.counts, state.sampling.counts)


@quick(60)
@given(passes(), st.data())
def test_requests_go_on_where_the_reference_says(case: Pass, data: st.DataObject) -> None:
    state, table, _ = case
    for slot in range(len(state.length)):
        state.length[slot], state.draft.count[slot] = data.draw(st.integers(1, 30)), data.draw(st.integers(0, 5))
        state.alive[slot] = data.draw(st.integers(0, 1))
    for group in range(table.shape[1]):
        if data.draw(st.booleans()):
            table[1, group] = CONTINUES
    expected = with_face("torch", resume, table, state)
    assert torch.equal(with_face("triton", resume, table, state), expected)
    went_on = table[1] == CONTINUES
    assert (expected[1] >= 0).all() and torch.equal(expected[:, ~went_on], table[:, ~went_on])
    rows_used = expected[1] + expected[2] + expected[3]
    assert (rows_used <= expected[6])[went_on & (expected[5] == 1)].all()  # never past what is reserved


@pytest.mark.parametrize("face", FACES)
@quick(10)
@given(st.sampled_from([1, 2, 7, 40]), st.integers(0, 10**6))
def test_depths_are_the_references(face: str, nodes: int, seed: int) -> None:
    torch.manual_seed(seed)
    parents = torch.stack([torch.randint(-1, i, (6,)) if i else torch.full((6,), -1) for i in range(nodes)], 1)
    count = torch.randint(0, nodes + 1, (6,))
    wide = torch.nn.functional.pad(parents, (0, 3)).to(DEVICE)[:, :nodes]  # lines may lie apart
    draft = Draft(torch.zeros_like(wide), wide, count.to(DEVICE))
    assert torch.equal(with_face(face, verify.tree_depths, draft), draft.depth())


@quick(15)
@given(st.integers(1, 4), st.integers(1, 9), st.integers(0, 10**6))
def test_the_rows_of_a_path_are_moved_in_every_layer(groups: int, nodes: int, seed: int) -> None:
    torch.manual_seed(seed)
    path = listed(torch.rand(groups, nodes) < 0.5)
    assert groups == 1 or not path.is_contiguous()
    tables, ends, slots = torch.randperm(6 * 4).view(4, 6), torch.randint(0, 24 - nodes, (groups,)), torch.randperm(4)
    pools = [torch.randn(3, 24 * 4, 5) for _ in range(2)]
    expected = [pool.clone() for pool in pools]
    for g in range(groups):
        rows_of = [int(tables[slots[g], at // 4]) * 4 + at % 4 for at in range(24)]
        end, taken = int(ends[g]), [node for node in path[g].tolist() if node >= 0]
        for want, pool in zip(expected, pools, strict=True):
            for i, node in enumerate(taken):
                want[:, rows_of[end + i]] = pool[:, rows_of[end + node]]
    moved = [pool.to(DEVICE) for pool in pools]
    move_triton.move_path(*moved, *(t.to(DEVICE) for t in (path, ends, slots[:groups], tables)), block_size=4)
    assert all(torch.equal(mine.cpu(), want) for mine, want in zip(moved, expected, strict=True))


@quick(10)
@given(st.integers(1, 5), st.sampled_from([1, 30, 2048, 5000]), st.booleans(), st.integers(0, 10**6))
def test_the_likeliest_token_and_its_number_for_the_target(logits_rows: int, vocab: int, ties: bool, seed: int) -> None:
    torch.manual_seed(seed)
    logits = torch.randn(logits_rows, vocab).to(DEVICE)
    logits = logits.round() if ties else logits
    token = torch.arange(vocab, device=DEVICE)
    lowest = torch.where(logits == logits.amax(1, keepdim=True), token, vocab).amin(1)
    targets = torch.randperm(3 * vocab)[:vocab].to(DEVICE)
    assert torch.equal(with_face("triton", top.argmax, logits), lowest)
    assert torch.equal(with_face("triton", top.argmax, logits, targets), targets[lowest])
    if not ties:
        assert torch.equal(with_face("torch", top.argmax, logits, targets), targets[lowest])
