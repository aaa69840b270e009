"""The Triton face of a layer's operations against the torch one: interpreted on a CPU, compiled on a GPU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from rows import BLOCK_SIZE, Segment, make_rows, scattered_tables, to
from torch import Tensor

pytest.importorskip("triton")
import interpreter  # noqa: F401

from augury.kernels import attend_plan_triton
from augury.kernels.exact_triton_ops import ExactTritonOps
from augury.kernels.rows import Rows
from augury.kernels.torch_ops import TorchOps
from augury.kernels.triton_ops import TritonOps

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
TRITON, EXACT, TORCH = TritonOps(), ExactTritonOps(), TorchOps()
KINDS = [torch.float32, torch.float16] + ([torch.bfloat16] if DEVICE.type == "cuda" else [])  # interpreted bf16 is off
BOUND = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}
QUICK = settings(
    max_examples=200 if DEVICE.type == "cuda" else 8,
    deadline=None,
    derandomize=True,
    phases=(Phase.explicit, Phase.generate),  # shrinking takes minutes under the interpreter
)


@st.composite
def trees(draw: st.DrawFn, most: int = 8) -> list[int]:
    size = draw(st.integers(1, most))
    return [draw(st.integers(-1, i - 1)) for i in range(size)]


@st.composite
def passes(draw: st.DrawFn) -> Rows:
    """Prompt chunks and trees of three slots, in any mixture, with padding."""
    segments, order = [], draw(st.permutations([0, 1, 2]))
    for slot in order:
        start = draw(st.integers(0, 36))
        if draw(st.booleans()):
            parents = draw(trees())
            segments.append(Segment(slot, start, [0] * len(parents), parents))
        else:
            segments.append(Segment(slot, start, [0] * draw(st.integers(1, 12))))
    rows = make_rows(segments, scattered_tables(4), padding=draw(st.integers(0, 3)))
    rows.slots[len(rows.wanted) :] = 3  # padding rows point to a slot that nobody has
    chances = {"first": draw(st.sampled_from([0, 0, 1])), "groups": draw(st.sampled_from([0, 4]))}
    return replace(to(rows, DEVICE), chunked=draw(st.booleans()), **chances)


def random(*shape: int, kind: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, dtype=torch.float32).to(DEVICE, kind)


@st.composite
def attentions(draw: st.DrawFn) -> tuple[dict[str, Any], Rows]:
    rows = draw(passes())
    kv_heads, group = draw(st.integers(1, 2)), draw(st.sampled_from([1, 2, 3, 4, 7]))
    key_dim, value_dim = draw(st.sampled_from([(16, 16), (64, 64), (8, 8), (20, 20), (48, 32), (24, 40)]))
    torch.manual_seed(draw(st.integers(0, 1000)))
    physical, kind = int(rows.block_tables.max() + 1) * BLOCK_SIZE, draw(st.sampled_from(KINDS))
    given = {
        "q": random(len(rows.tokens), kv_heads * group, key_dim, kind=kind),
        "keys": random(physical, kv_heads, key_dim, kind=kind),
        "values": random(physical, kv_heads, value_dim, kind=kind),
        "scale": key_dim**-0.5,
        "window": draw(st.sampled_from([0, 0, 1, 3, 8, 100, -1, -5])),
        "softcap": draw(st.sampled_from([0.0, 0.0, 2.0])),
        "sinks": random(kv_heads * group) if draw(st.booleans()) else None,
    }
    return given, rows


@pytest.fixture(autouse=True)
def short_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small enough that the contexts here have several."""
    monkeypatch.setattr(attend_plan_triton, "SPLIT", 16)
    monkeypatch.setattr(attend_plan_triton, "LEAST_SPLIT", 8)
    monkeypatch.setattr(attend_plan_triton, "PROMPT_ROWS", 8)


@QUICK
@given(attentions())
def test_attention_is_the_references(case: tuple[dict[str, Any], Rows]) -> None:
    given, rows = case
    expected = TORCH.attend(view=TORCH.view(rows), **given)
    result = TRITON.attend(view=TRITON.view(rows), **given)
    bound = BOUND[expected.dtype]
    torch.testing.assert_close(result, expected, atol=bound, rtol=bound)
    blind = rows.context + rows.ancestors == 0
    assert not result[blind].any()


@QUICK
@given(attentions())
def test_attention_never_looks_at_what_it_does_not_see(case: tuple[dict[str, Any], Rows]) -> None:
    """Whatever lies in cache rows that no row of the pass sees, NaN included, changes nothing."""
    given, rows = case
    sight = TORCH.view(rows)
    seen = torch.zeros(len(given["keys"]), dtype=torch.bool, device=DEVICE)
    seen[sight.physical[sight.visible]] = True
    clean = TRITON.attend(view=TRITON.view(rows), **given)
    for name in ("keys", "values"):
        given[name][~seen] = float("nan")
    assert torch.equal(TRITON.attend(view=TRITON.view(rows), **given), clean)


@QUICK
@given(attentions(), st.data())
def test_a_row_does_not_depend_on_the_other_slots(case: tuple[dict[str, Any], Rows], data: st.DataObject) -> None:
    """In exact mode splits have a fixed size: the same bits alone and in any batch."""
    given, rows = case
    together = EXACT.attend(view=EXACT.view(rows), **given)
    slot = data.draw(st.sampled_from(sorted(set(rows.slots[: len(rows.wanted)].tolist()))))
    mine = rows.slots == slot
    tensors = ("tokens", "positions", "slots", "context", "base", "ancestors", "write")
    alone = replace(rows, **{name: getattr(rows, name)[mine] for name in tensors})
    assert torch.equal(EXACT.attend(view=EXACT.view(alone), **given | {"q": given["q"][mine]}), together[mine])


def test_too_many_splits_become_longer_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    segments = [Segment(slot, 50, [0]) for slot in range(3)]
    rows = to(make_rows(segments, scattered_tables(3)), DEVICE)
    q, keys, values = random(3, 2, 16), random(49 * BLOCK_SIZE, 2, 16), random(49 * BLOCK_SIZE, 2, 16)
    expected = TORCH.attend(q, keys, values, TORCH.view(rows), 0.25)
    for capacity, split in ((12, 16), (11, 32), (6, 32), (5, 64), (3, 64)):
        monkeypatch.setattr(attend_plan_triton, "SCRATCH_BYTES", 4 * 2 * 16 * 32 * capacity)
        view = EXACT.view(rows)
        torch.testing.assert_close(EXACT.attend(q, keys, values, view, 0.25), expected, atol=2e-6, rtol=1e-5)
        (plan,) = view.plans[1, 2, 16]
        assert int(plan.totals[1]) == split
        assert int(plan.totals[0]) <= capacity


def test_splits_grow_with_all_the_keys_of_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that programs have about as many keys each: short ones for one text, and none is cut where there are many."""
    monkeypatch.setattr(attend_plan_triton, "programs", lambda device, per_processor: 8)  # four for each key head
    for contexts, split in (((20,), 8), ((50,), 16), ((50, 50), 32), ((50, 50, 50, 7), 64), ((60, 5, 5), 32)):
        rows = to(make_rows([Segment(i, n, [0]) for i, n in enumerate(contexts)], scattered_tables(4)), DEVICE)
        rows.groups = len(contexts)
        q, keys, values = (random(n, 2, 16) for n in (len(contexts), 65 * BLOCK_SIZE, 65 * BLOCK_SIZE))
        view = TRITON.view(rows)
        expected = TORCH.attend(q, keys, values, TORCH.view(rows), 0.25)
        torch.testing.assert_close(TRITON.attend(q, keys, values, view, 0.25), expected, atol=2e-6, rtol=1e-5)
        (plan,) = view.plans[1, 2, 16]
        assert plan.totals.tolist() == [sum(-(-(n + 1) // split) for n in contexts), split]


def test_rows_are_planned_in_parts_where_they_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same items as from one look at all of them, whether splits are fixed, grow with the keys or are too many."""
    segments = [Segment(i, 20 + 9 * i, [0] * 5, [-1, 0, 0, 1, 3]) for i in range(4)]
    rows = to(make_rows(segments, scattered_tables(4)), DEVICE)
    rows.groups = 4
    for ops, room in ((TRITON, 256 << 20), (EXACT, 256 << 20), (EXACT, 4 * 2 * 16 * 32 * 7)):
        monkeypatch.setattr(attend_plan_triton, "SCRATCH_BYTES", room)
        plans = []
        for at_once in (2048, 8):
            monkeypatch.setattr(attend_plan_triton, "AT_ONCE", at_once)
            plan = attend_plan_triton.make_plan(rows, 4, 2, 16, False, ops is EXACT)
            plans.append((plan.totals.tolist(), plan.items[: int(plan.totals[0])].tolist()))
        assert plans[0] == plans[1]


@pytest.mark.parametrize("kind", KINDS)
def test_drafts_share_a_tile(kind: torch.dtype) -> None:
    """A known row and a chain of five by four heads: two tiles of 16 query rows, or one of 32 that reads keys once."""
    rows = to(make_rows([Segment(i, 50, [0] * 6, [-1, 0, 1, 2, 3, 4]) for i in range(2)], scattered_tables(2)), DEVICE)
    q, keys, values = (random(n, m, 16, kind=kind) for n, m in ((len(rows.tokens), 8), *2 * [(33 * BLOCK_SIZE, 2)]))
    low, tall = EXACT.view(rows), EXACT.view(replace(rows, groups=2))
    apart, together = (EXACT.attend(q, keys, values, view, 0.25) for view in (low, tall))
    expected = TORCH.attend(q, keys, values, TORCH.view(rows), 0.25)
    torch.testing.assert_close(together, expected, atol=BOUND[kind], rtol=BOUND[kind])
    if DEVICE.type == "cuda":  # the interpreter's products are numpy's, which add in another order
        assert torch.equal(together, apart)
    narrow = EXACT.view(replace(rows, groups=2))
    EXACT.attend(q, keys.to(torch.float8_e4m3fn), values.to(torch.float8_e4m3fn), narrow, 0.25)
    assert narrow.plans[4, 2, 16][0].height == 16  # of eight bits, where tall tiles need not have the bits of low ones
    one, other = low.plans[4, 2, 16][0], tall.plans[4, 2, 16][0]
    assert (one.height, other.height) == (16, 32)
    assert int(one.totals[0]) == 2 * int(other.totals[0])


@pytest.mark.parametrize("split", [1, 2, 3, 4, 6, 8, 16])
def test_many_splits_are_joined_in_the_order_of_their_keys(monkeypatch: pytest.MonkeyPatch, split: int) -> None:
    """52, 26, 18, 13, 9, 7 and 4 of them: several groups of eight, one of them whole or alone, and fewer than eight."""
    monkeypatch.setattr(attend_plan_triton, "SPLIT", split)
    rows = to(make_rows([Segment(0, 51, [0]), Segment(1, 0, [0])], scattered_tables(2)), DEVICE)
    q, keys, values = random(2, 2, 16), random(33 * BLOCK_SIZE, 2, 16), random(33 * BLOCK_SIZE, 2, 16)
    expected = TORCH.attend(q, keys, values, TORCH.view(rows), 0.25)
    got = EXACT.attend(q, keys, values, EXACT.view(rows), 0.25)
    torch.testing.assert_close(got, expected, atol=2e-6, rtol=1e-5)


@QUICK
@given(st.integers(1, 9), st.integers(1, 300), st.sampled_from(KINDS), st.integers(0, 99))
def test_norms_are_the_references(rows: int, width: int, kind: torch.dtype, seed: int) -> None:
    torch.manual_seed(seed)
    x, residual, weight = random(rows, width, kind=kind), random(rows, width, kind=kind), random(width, kind=kind)
    bound = {"atol": BOUND[kind], "rtol": BOUND[kind]}
    torch.testing.assert_close(TRITON.rms_norm(x, weight, 1e-5), TORCH.rms_norm(x, weight, 1e-5), **bound)
    wide = random(rows, width + 5, kind=kind)[:, :width]  # rows that lie apart
    torch.testing.assert_close(TRITON.rms_norm(wide, weight, 1e-5), TORCH.rms_norm(wide, weight, 1e-5), **bound)
    before = residual.clone()
    normed, added = TORCH.add_rms_norm(x, residual, weight, 1e-5)
    mine, total = TRITON.add_rms_norm(x, residual, weight, 1e-5)
    torch.testing.assert_close(mine, normed, **bound)
    assert torch.equal(total, added)
    assert torch.equal(residual, before)


@QUICK
@given(st.integers(1, 5), st.integers(1, 1500), st.sampled_from(KINDS), st.integers(0, 99))
def test_the_activation_is_the_references(rows: int, width: int, kind: torch.dtype, seed: int) -> None:
    torch.manual_seed(seed)
    x = 4 * random(rows, 2 * width, kind=kind)
    torch.testing.assert_close(TRITON.silu_mul(x), TORCH.silu_mul(x), atol=BOUND[kind], rtol=BOUND[kind])


@QUICK
@given(passes(), st.data())
def test_rotated_keys_and_values_reach_the_cache(rows: Rows, data: st.DataObject) -> None:
    heads, kv_heads = data.draw(st.sampled_from([(0, 2), (4, 2), (3, 3), (9, 3)]))
    dim, half = data.draw(st.sampled_from([(16, 8), (20, 10), (24, 4), (64, 32)]))
    kind, normed = data.draw(st.sampled_from(KINDS)), data.draw(st.booleans())
    torch.manual_seed(data.draw(st.integers(0, 99)))
    physical = int(rows.block_tables.max() + 1) * BLOCK_SIZE
    qkv = random(len(rows.tokens), (heads + 2 * kv_heads) * dim, kind=kind)
    angles = torch.arange(80)[:, None] * torch.rand(half)
    rotary = (angles.cos().to(DEVICE), angles.sin().to(DEVICE))
    norms = (random(dim, kind=kind), random(dim, kind=kind)) if normed else (None, None)
    results = []
    for ops in (TORCH, TRITON):
        keys, values = (torch.zeros(physical, kv_heads, dim, dtype=kind, device=DEVICE) for _ in range(2))
        q = ops.rotate_and_store(qkv.clone(), ops.view(rows), rotary, keys, values, *norms, eps=1e-5)
        live = rows.write[: len(rows.wanted)]  # padding rows share a row whose content never matters
        results.append((q, keys[live], values[live]))
    for mine, theirs in zip(results[1], results[0], strict=True):
        torch.testing.assert_close(mine, theirs, atol=BOUND[kind], rtol=BOUND[kind])


@QUICK
@given(attentions(), st.sampled_from([torch.float8_e4m3fn, torch.float8_e5m2]))
def test_a_cache_of_eight_bits_is_read_as_its_wider_twin(case: tuple[dict[str, Any], Rows], short: torch.dtype) -> None:
    given, rows = case
    narrow = {name: given[name].to(short) for name in ("keys", "values")}
    wide = {name: cache.to(given["q"].dtype) for name, cache in narrow.items()}
    low = TRITON.view(replace(rows, groups=0))
    assert torch.equal(TRITON.attend(view=low, **given | narrow), TRITON.attend(view=low, **given | wide))
    view, bound = TRITON.view(rows), 0 if DEVICE.type == "cpu" else BOUND[given["q"].dtype]
    torch.testing.assert_close(  # a GPU's instructions may take narrow keys in another order, in tall tiles they do
        TRITON.attend(view=view, **given | narrow), TRITON.attend(view=view, **given | wide), atol=bound, rtol=bound
    )
    torch.testing.assert_close(
        TORCH.attend(view=TORCH.view(rows), **given | narrow),
        TORCH.attend(view=TORCH.view(rows), **given | wide),
        atol=0,
        rtol=0,
    )


@pytest.mark.skipif(DEVICE.type == "cpu", reason="the interpreter does not round to 8 bits as GPUs do")
@pytest.mark.parametrize("short", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_keys_and_values_are_rounded_to_eight_bits_as_torch_rounds(short: torch.dtype) -> None:
    rows = to(make_rows([Segment(0, 0, [0] * 40)], scattered_tables(1)), DEVICE)
    torch.manual_seed(0)
    qkv, rotary = 300 * random(40, 8 * 64, kind=torch.bfloat16), (random(64, 32), random(64, 32))
    caches = [[torch.zeros(68, 2, 64, device=DEVICE).to(short) for _ in range(2)] for _ in range(2)]
    faces: list[Any] = [TRITON, TORCH]
    for ops, cache in zip(faces, caches, strict=True):
        ops.rotate_and_store(qkv.clone(), ops.view(rows), rotary, *cache)
    for ours, theirs in zip(*caches, strict=True):
        assert torch.equal(ours.view(torch.uint8), theirs.view(torch.uint8))
        assert ours.float().isfinite().all()
