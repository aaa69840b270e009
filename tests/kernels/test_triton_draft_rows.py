"""The kernels behind a drafter's own passes, Triton's (interpreted on a CPU) and numba's, against the torch code."""

from __future__ import annotations

from dataclasses import fields
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

pytest.importorskip("triton")
import interpreter  # noqa: F401
from rows import scattered_tables
from step_cases import BLOCK_SIZE, DEVICE, FACES, SLOTS, quick, with_face

from augury.drafters.base import DraftInput
from augury.drafters.features import track_lengths
from augury.drafters.recurrent import RecurrentDrafter
from augury.drafters.rows import UnreadRows, fresh_rows, level_rows, step_rows
from augury.kernels import draft_rows_triton
from augury.kernels.rows import Rows
from augury.verify.sampling import SlotSampling

NODES, BLOCKS, HIDDEN = 4, 16, 6
FIELDS = [field.name for field in fields(Rows)][:7]  # those of single rows


class Case(NamedTuple):
    """A turn, and what a drafter that reads pairs would read of it."""

    inputs: DraftInput
    begin: Tensor
    count: Tensor
    carried: Tensor


@pytest.fixture(autouse=True)
def short_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small enough that the groups here have several."""
    monkeypatch.setattr(draft_rows_triton, "CHUNK", 8)


@st.composite
def groups(draw: st.DrawFn, slot: int) -> tuple[dict[str, int], list[int]]:
    """One request after a pass: a prompt chunk or a draft, of which a path was accepted."""
    carried = draw(st.booleans())  # its first tokens were found in the prefix cache, in whole blocks
    start = BLOCK_SIZE * draw(st.integers(1, 5)) if carried else draw(st.integers(0, 20))
    known = draw(st.integers(1, 14))
    nodes = draw(st.integers(0, NODES))
    path = sorted(draw(st.sets(st.integers(0, nodes - 1)))) if nodes else []
    active = bool(path) or draw(st.booleans())
    lengths = start + known + (len(path) + 1 if active else 0)
    fits = draw(st.sampled_from([1, 1, 1, 0]))  # past the drafter's own longest text nothing is read
    numbers = {
        "slots": slot,
        "start": start,
        "num_new_tokens": known,
        "nodes": nodes,
        "lengths": lengths,
        "carried": int(carried),
        "budget": draw(st.integers(0, NODES)) if active else 0,
        "fits": fits,
    }
    return numbers, path + [-1] * (NODES - len(path))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    torch.manual_seed(draw(st.integers(0, 10**6)))
    size = draw(st.sampled_from([1, 2, 4]))
    order = draw(st.permutations(range(SLOTS)))[: draw(st.integers(1, size))]
    drawn = [draw(groups(slot)) for slot in order]
    blank = dict.fromkeys(("start", "num_new_tokens", "nodes", "lengths", "carried", "budget", "fits"), 0) | {
        "slots": SLOTS
    }
    drawn += [(blank, [-1] * NODES)] * (size - len(drawn))
    column = {name: torch.tensor([g[name] for g, _ in drawn], device=DEVICE) for name in blank}
    carried, fits = column.pop("carried"), column.pop("fits")
    passed = column["num_new_tokens"] + column["nodes"]
    rows = int(passed.sum()) + draw(st.integers(0, 2))
    apart = draw(st.sampled_from([0, 1]))  # a verdict's paths do not lie side by side
    inputs = DraftInput(
        **column,
        history=torch.randint(0, 50, (SLOTS + 1, 45)).to(DEVICE),
        sampling=SlotSampling.allocate(1),
        block_tables=scattered_tables(SLOTS + 1, BLOCKS).to(DEVICE),
        block_size=BLOCK_SIZE,
        most_rows=rows + size,
        span=64,
        row_begin=passed.cumsum(0) - passed,
        path=torch.tensor([p + [0] * apart for _, p in drawn], device=DEVICE)[:, :NODES],
        chunked=draw(st.booleans()),
        features=tuple(torch.randn(rows, HIDDEN).to(DEVICE) for _ in range(2)),
    )
    tracks = track_lengths(inputs)
    count = torch.where((fits > 0) & (tracks > 0), tracks + carried, 0)
    return Case(inputs, inputs.start + 1 - carried, count, carried)


def packed(rows: Rows) -> Tensor:
    """All that a row is, [7, R]."""
    return torch.stack([getattr(rows, name) for name in FIELDS])


def sees_nothing(rows: Rows, padding: Tensor) -> None:
    """Rows of nobody: whatever they compute reaches no one."""
    for name in ("context", "ancestors", "write"):
        assert not getattr(rows, name)[padding].any()
    assert (rows.slots[padding] == len(rows.block_tables) - 1).all()


@pytest.mark.parametrize("face", FACES)
@quick(20)
@given(cases(), st.integers(0, 1), st.integers(0, 3), st.booleans())
def test_fresh_rows_are_the_references(face: str, case: Case, shift: int, masks: int, tight: bool) -> None:
    inputs = case.inputs
    if tight:  # masks may reach past the text and past the blocks
        longest = int((case.begin + case.count).max())
        inputs.history = inputs.history[:, : max(1, longest)].contiguous()
        inputs.block_tables = inputs.block_tables[:, : max(1, -(-longest // BLOCK_SIZE))].contiguous()
    asked = (inputs, case.begin, case.count, shift, masks, 7)
    mine, reference = with_face(face, fresh_rows, *asked), with_face("torch", fresh_rows, *asked)
    live = int(reference.live.sum())
    assert torch.equal(packed(mine.rows)[:, :live], packed(reference.rows)[:, :live])
    assert torch.equal(mine.places[:, :live], reference.places[:, :live])
    assert torch.equal(mine.rows.wanted, reference.rows.wanted)
    assert (mine.rows.span, mine.rows.first, mine.rows.chunked) == (64, shift, inputs.chunked)
    padding = torch.arange(len(mine.live), device=DEVICE) >= live
    assert len(padding) == (len(reference.live) if face == "numba" else inputs.most_rows + masks * len(case.count))
    assert not mine.live[padding].any()
    sees_nothing(mine.rows, padding)


@pytest.mark.parametrize("face", FACES)
@quick(20)
@given(cases(), st.integers(0, NODES - 1), st.integers(0, 1))
def test_the_next_tokens_of_chains_are_the_references(face: str, case: Case, ahead: int, shift: int) -> None:
    inputs = case.inputs
    tokens = torch.randint(0, 50, (len(inputs.slots), NODES)).to(DEVICE)[
        :, ahead
    ]  # a column of the chain being written
    asked = (inputs, tokens, ahead, inputs.budget, shift)
    mine, reference = with_face(face, step_rows, *asked), with_face("torch", step_rows, *asked)
    assert torch.equal(packed(mine), packed(reference)) and torch.equal(mine.wanted, reference.wanted)
    assert mine.first == reference.first == shift
    sees_nothing(mine, inputs.budget < ahead + 2)  # nobody reads the scores of a chain's last token


@pytest.mark.parametrize("face", FACES)
@quick(20)
@given(cases(), st.integers(1, 3), st.integers(1, 5), st.integers(0, 9), st.integers(0, 1), st.booleans())
def test_levels_of_trees_are_the_references(
    face: str, case: Case, width: int, depth: int, number: int, shift: int, narrow: bool
) -> None:
    inputs = case.inputs
    if narrow:  # a level may reach past the blocks
        inputs.block_tables = inputs.block_tables[:, :7].contiguous()
    tokens = torch.randint(0, 50, (len(inputs.slots), width)).to(DEVICE)
    bits = torch.randint(1, 2**40, (len(inputs.slots), width + 1)).to(DEVICE)[:, 1:]
    asked = (inputs, tokens, bits, depth, number, inputs.budget, shift)
    mine, reference = with_face(face, level_rows, *asked), with_face("torch", level_rows, *asked)
    assert torch.equal(packed(mine), packed(reference)) and torch.equal(mine.wanted, reference.wanted)
    assert mine.first == reference.first == shift
    sees_nothing(mine, (inputs.budget < 1).repeat_interleave(width))


def streams(face: str, case: Case, ends: Tensor, mask: Tensor | None) -> tuple[Tensor, UnreadRows]:
    """What a drafter reads of the pass, and the rows it reads it for; `ends` takes the ends of blocks."""
    drafter: Any = SimpleNamespace(
        device=DEVICE,
        _block_ends=ends,
        _mask=None if mask is None else 7,
        head=SimpleNamespace(parts=SimpleNamespace(mask_hidden=mask)),
    )
    masks = 0 if mask is None else NODES - 1
    fresh = with_face(face, fresh_rows, case.inputs, case.begin, case.count, 1, masks, 7)
    return with_face(face, RecurrentDrafter._streams, drafter, case.inputs, fresh, case.count, case.carried), fresh


@pytest.mark.parametrize("face", FACES)
@quick(20)
@given(cases(), st.booleans())
def test_streams_are_the_references(face: str, case: Case, masked: bool) -> None:
    """Rows of this pass, rows carried over from the block before it, masks; and the ends of blocks are kept."""
    ends = torch.randn((SLOTS + 1) * BLOCKS + 1, 2 * HIDDEN).to(DEVICE)
    mask = torch.randn(1, 2 * HIDDEN).to(DEVICE) if masked else None  # as checkpoints have it
    kept = ends.clone()
    reference, fresh = streams("torch", case, ends, mask)
    mine, _ = streams(face, case, kept, mask)
    live = int(fresh.live.sum())
    assert torch.equal(mine[:live], reference[:live])
    assert torch.equal(kept[1:], ends[1:])  # block 0 is nobody's
