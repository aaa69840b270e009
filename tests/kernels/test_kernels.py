"""The numba face against the torch one, and what numba alone promises: a row's bits depend on that row alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numba
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rows import BLOCK_SIZE, Segment, make_rows, scattered_tables
from torch import Tensor

from augury.kernels import choose, fused, numba_ops
from augury.kernels.rows import Rows
from augury.kernels.torch_ops import TorchOps

NUMBA, TORCH = choose(torch.device("cpu")), TorchOps()
QUICK = settings(max_examples=60, deadline=None)


@pytest.fixture(autouse=True)
def many_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thread everything, so that small shapes cover the threaded code."""
    monkeypatch.setattr(numba_ops, "PARALLEL_SIGHT", 0)
    monkeypatch.setattr(numba_ops, "PARALLEL_WEIGHT", 0)


@st.composite
def trees(draw: st.DrawFn, most: int = 12) -> list[int]:
    size = draw(st.integers(1, most))
    return [draw(st.integers(-1, i - 1)) for i in range(size)]


@st.composite
def passes(draw: st.DrawFn) -> Rows:
    """Prompt chunks and trees of three slots, in any mixture, with padding."""
    segments = []
    for slot in range(3):
        start = draw(st.integers(0, 40))
        if draw(st.booleans()):
            parents = draw(trees())
            segments.append(Segment(slot, start, [0] * len(parents), parents))
        else:
            segments.append(Segment(slot, start, [0] * draw(st.integers(1, 6))))
    return make_rows(segments, scattered_tables(3), padding=draw(st.integers(0, 3)))


@st.composite
def attentions(draw: st.DrawFn) -> tuple[dict[str, Any], Rows]:
    rows = draw(passes())
    kv_heads, group = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    key_dim, value_dim = draw(st.sampled_from([(16, 16), (64, 64), (8, 8), (20, 20), (48, 32), (24, 40)]))
    torch.manual_seed(draw(st.integers(0, 1000)))
    physical = int(rows.block_tables.max() + 1) * BLOCK_SIZE
    given = {
        "q": torch.randn(len(rows.tokens), kv_heads * group, key_dim),
        "keys": torch.randn(physical, kv_heads, key_dim),
        "values": torch.randn(physical, kv_heads, value_dim),
        "scale": key_dim**-0.5,
        "window": draw(st.sampled_from([0, 0, 1, 3, 8, 100, -1, -5])),
        "softcap": draw(st.sampled_from([0.0, 0.0, 2.0])),
        "sinks": torch.randn(kv_heads * group) if draw(st.booleans()) else None,
    }
    return given, rows


@QUICK
@given(attentions())
def test_attention_means_the_same_on_both_faces(case: tuple[dict[str, Any], Rows]) -> None:
    given, rows = case
    expected = TORCH.attend(view=TORCH.view(rows), **given)
    result = NUMBA.attend(view=NUMBA.view(rows), **given)
    torch.testing.assert_close(result, expected, atol=2e-6, rtol=1e-5)
    blind = rows.context + rows.ancestors == 0
    assert not result[blind].any()


@QUICK
@given(attentions())
def test_attention_agrees_with_a_plain_softmax(case: tuple[dict[str, Any], Rows]) -> None:
    given, rows = case
    result = TORCH.attend(view=TORCH.view(rows), **given)
    for r in range(len(rows.tokens)):
        torch.testing.assert_close(result[r], softmax_attention(r, rows, **given), atol=2e-6, rtol=1e-5)


def softmax_attention(
    r: int,
    rows: Rows,
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    scale: float,
    window: int,
    softcap: float,
    sinks: Tensor | None,
) -> Tensor:
    """Attention of one row, word by word from the description of Rows."""
    base, bits = int(rows.base[r]), int(rows.ancestors[r])
    seen = [(c, c) for c in range(int(rows.context[r]))]
    nodes = [j for j in range(63) if bits >> j & 1]
    seen += [(base + j, base + depth) for depth, j in enumerate(nodes)]
    place = int(rows.positions[r])
    if window > 0:
        seen = [(c, position) for c, position in seen if place - position < window]
    if window < 0:
        seen = [(c, position) for c, position in seen if place // -window == position // -window]
    if not seen:
        return torch.zeros(q.shape[1], values.shape[2])
    table = rows.block_tables[rows.slots[r]]
    physical = [int(table[c // BLOCK_SIZE]) * BLOCK_SIZE + c % BLOCK_SIZE for c, _ in seen]
    group = q.shape[1] // keys.shape[1]
    scores = torch.einsum("hd,nhd->hn", q[r], keys[physical].repeat_interleave(group, 1)) * scale
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    if sinks is not None:
        scores = torch.cat((scores, sinks[:, None]), 1)
    weights = scores.softmax(1)[:, : len(seen)]
    return torch.einsum("hn,nhd->hd", weights, values[physical].repeat_interleave(group, 1))


def long_case(heads: int = 9, kv_heads: int = 3, dim: int = 64, context: int = 300) -> tuple[dict[str, Any], Tensor]:
    """Random keys of one long sequence in scattered blocks."""
    torch.manual_seed(1)
    tables = scattered_tables(2, 100)
    physical = int(tables.max() + 1) * BLOCK_SIZE
    keys, values = torch.randn(2, physical, kv_heads, dim)
    return {"keys": keys, "values": values, "scale": dim**-0.5}, tables


@pytest.mark.parametrize("window", [0, 70, -70])
@pytest.mark.parametrize("padding", [0, 5])
def test_a_row_gives_the_same_bits_alone_and_in_company(window: int, padding: int) -> None:
    given, tables = long_case()
    given["window"] = window
    company = [Segment(1, 250, [0] * 7), Segment(0, 300, [0] * 9, [-1, 0, 0, 1, 1, 2, 5, 6, 3])]
    q = torch.randn(16 + padding, 9, 64)
    rows = make_rows(company, tables, padding=padding)
    together = NUMBA.attend(q=q, view=NUMBA.view(rows), **given)
    for r in range(16):
        names = ("tokens", "positions", "slots", "context", "base", "ancestors", "write", "wanted")
        alone = replace(rows, **{name: getattr(rows, name)[r : r + 1] for name in names})
        assert torch.equal(NUMBA.attend(q=q[r : r + 1], view=NUMBA.view(alone), **given)[0], together[r])


@pytest.mark.parametrize("options", [{}, {"softcap": 5.0}, {"sinks": torch.linspace(-1, 1, 9)}], ids=str)
@pytest.mark.parametrize("dim", [64, 128, 48])
def test_rows_worked_on_in_fours_give_the_same_bits(dim: int, options: dict[str, Any]) -> None:
    """Long prompts and drafts share whole blocks of keys among four rows; 48 is no multiple of what that takes."""
    given, tables = long_case(dim=dim)
    prompt, draft = Segment(0, 50, [0] * 180), Segment(1, 200, [0] * 7, [-1, 0, 0, 1, 1, 2, 5])
    rows = make_rows([prompt, draft], tables, padding=2)
    q = torch.randn(189, 9, dim)
    together = NUMBA.attend(q=q, view=NUMBA.view(rows), **given, **options)
    names = ("tokens", "positions", "slots", "context", "base", "ancestors", "write", "wanted")
    for r in range(187):
        alone = replace(rows, **{name: getattr(rows, name)[r : r + 1] for name in names})
        assert torch.equal(NUMBA.attend(q=q[r : r + 1], view=NUMBA.view(alone), **given, **options)[0], together[r])
    expected = TORCH.attend(q=q, view=TORCH.view(rows), **given, **options)
    torch.testing.assert_close(together, expected, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("group", [1, 3])
def test_prompts_worked_on_in_tiles_give_the_same_bits(group: int) -> None:
    """However many rows a prompt has here, wherever it begins, and whatever the keys after a row hold."""
    given, tables = long_case()
    lengths, starts = (7, 8, 21, 70, 129), (0, 200, 31, 64, 63)
    for length, start in zip(lengths, starts, strict=True):
        rows = make_rows([Segment(0, start, [0] * length), Segment(1, 90, [0] * 9)], tables, padding=3)
        q = torch.randn(length + 12, 3 * group, 64)
        together = NUMBA.attend(q=q, view=NUMBA.view(rows), **given)
        last = int(rows.write[length - 1])
        broken = {**given, "values": given["values"].clone(), "keys": given["keys"].clone()}
        broken["values"][last], broken["keys"][last] = float("nan"), float("inf")
        assert torch.equal(NUMBA.attend(q=q, view=NUMBA.view(rows), **broken)[: length - 1], together[: length - 1])
        for r in range(0, length + 9, 2):
            names = ("tokens", "positions", "slots", "context", "base", "ancestors", "write", "wanted")
            alone = replace(rows, **{name: getattr(rows, name)[r : r + 1] for name in names})
            assert torch.equal(NUMBA.attend(q=q[r : r + 1], view=NUMBA.view(alone), **given)[0], together[r])
        expected = TORCH.attend(q=q, view=TORCH.view(rows), **given)
        torch.testing.assert_close(together, expected, atol=2e-6, rtol=1e-5)


def test_a_node_gives_the_same_bits_as_the_plain_row_of_its_path() -> None:
    given, tables = long_case()
    parents = [-1, -1, 0, 0, 2, 4, 1]
    tree = make_rows([Segment(0, 300, [0] * 7, parents)], tables)
    q = torch.randn(7, 9, 64)
    nodes = NUMBA.attend(q=q, view=NUMBA.view(tree), **given)
    plain = {key: value.clone() if isinstance(value, Tensor) else value for key, value in given.items()}
    for c, node in enumerate((0, 2, 4, 5)):  # copy the path into place, as a commit does
        target = int(tables[0, (300 + c) // BLOCK_SIZE]) * BLOCK_SIZE + (300 + c) % BLOCK_SIZE
        for store in ("keys", "values"):
            plain[store][target] = given[store][int(tree.write[node])]
    for c, node in enumerate((0, 2, 4, 5)):
        row = make_rows([Segment(0, 300 + c, [0])], tables)
        alone = NUMBA.attend(q=q[node : node + 1], view=NUMBA.view(row), **plain)
        assert torch.equal(alone[0], nodes[node])


@pytest.mark.skipif(numba.config.NUMBA_NUM_THREADS < 2, reason="one core")  # type: ignore[attr-defined]
def test_the_number_of_threads_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    given, tables = long_case()
    rows = make_rows([Segment(0, 280, [0] * 20)], tables)
    given["q"] = torch.randn(20, 9, 64)
    weight, x = torch.randn(96, 64), torch.randn(7, 64)
    results = []
    for threads in (1, 2):
        monkeypatch.setattr(NUMBA, "_threads", threads)
        results.append((NUMBA.attend(view=NUMBA.view(rows), **given), NUMBA.linear(x, weight)))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@QUICK
@given(
    st.integers(1, 70),
    st.sampled_from([16, 64, 96, 20]),
    st.sampled_from([4, 33, 50, 96]),
    st.sampled_from([torch.float32, torch.bfloat16]),
    st.booleans(),
)
def test_linear(rows: int, width: int, columns: int, dtype: torch.dtype, biased: bool) -> None:
    x, weight = torch.randn(rows, width), torch.randn(columns, width).to(dtype)
    bias = torch.randn(columns) if biased else None
    expected = torch.nn.functional.linear(x, weight.float(), bias)
    exact = width % 16 == 0 and (rows <= numba_ops.VENDOR_ROWS or dtype == torch.float32)
    tolerance = {"atol": 1e-4, "rtol": 1e-4} if exact or dtype == torch.float32 else {"atol": 0.3, "rtol": 0.02}
    torch.testing.assert_close(NUMBA.linear(x, weight, bias), expected, **tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(960, 576), (576, 1536), (1003, 64), (50, 1168), (9, 80)])
def test_linear_gives_a_row_the_same_bits_in_any_company(shape: tuple[int, int], dtype: torch.dtype) -> None:
    most = 64 if dtype == torch.bfloat16 else 300  # past that bf16 is the vendor's
    weight, x = torch.randn(shape).to(dtype), torch.randn(most, shape[1])
    alone = torch.cat([NUMBA.linear(x[r : r + 1], weight) for r in range(most)])
    for rows in (2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 64, 65, 129, 258, 300):
        assert torch.equal(NUMBA.linear(x[:rows], weight), alone[:rows])


@QUICK
@given(st.integers(1, 5), st.sampled_from([8, 64, 577]))
def test_norms_and_activation(rows: int, width: int) -> None:
    x, residual, weight = torch.randn(rows, width), torch.randn(rows, width), torch.randn(width)
    torch.testing.assert_close(NUMBA.rms_norm(x, weight, 1e-5), fused.rms_norm(x, weight, 1e-5))
    expected = TORCH.add_rms_norm(x.clone(), residual, weight, 1e-5)
    before = residual.clone()
    torch.testing.assert_close(NUMBA.add_rms_norm(x.clone(), residual, weight, 1e-5), expected)
    assert torch.equal(residual, before)
    gate_up = torch.randn(rows, 2 * width) * 20
    torch.testing.assert_close(NUMBA.silu_mul(gate_up), fused.silu_mul(gate_up), atol=1e-6, rtol=2e-6)


@QUICK
@given(passes(), st.sampled_from([(16, 16), (64, 64), (24, 16), (32, 8)]), st.booleans())
def test_rotation_and_store(rows: Rows, dims: tuple[int, int], normed: bool) -> None:
    dim, rotated = dims
    heads, kv_heads = 4, 2
    physical = int(rows.block_tables.max() + 1) * BLOCK_SIZE
    angles = torch.randn(64, rotated // 2)
    norms = [torch.randn(dim) if normed else None for _ in range(2)]
    qkv = torch.randn(len(rows.tokens), (heads + 2 * kv_heads) * dim)
    results = []
    for ops in (TORCH, NUMBA):
        cache = [torch.zeros(physical, kv_heads, dim) for _ in range(2)]
        q = ops.rotate_and_store(qkv.clone(), ops.view(rows), (angles.cos(), angles.sin()), *cache, *norms, eps=1e-6)
        results.append((q, cache[0][1:], cache[1][1:]))  # row 0 takes whatever padding wrote last
    torch.testing.assert_close(*results, atol=1e-5, rtol=1e-5)
