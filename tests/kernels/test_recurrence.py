"""The recurrent layers' operations: numba against the reference, and the reference against the formula, row by row."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from augury.kernels import recurrence, recurrence_numba
from augury.kernels.recurrence import Course, make_memory, read_states, write_states

LINES, HEADS, KEY_HEADS, KEYS, VALUES = 12, 4, 2, 10, 22  # neither whole blocks nor whole turns
Group = tuple[int, int, list[int]]  # rows run again, known rows, parents of the nodes


@st.composite
def groups(draw: st.DrawFn) -> list[Group]:
    found = []
    for _ in range(draw(st.integers(1, 3))):
        parents = [draw(st.integers(-1, i - 1)) for i in range(draw(st.integers(0, 5)))]
        found.append((draw(st.integers(0, 3)), draw(st.integers(1, 4)), parents))
    return found


def course_of(found: list[Group], save_after: int) -> Course:
    most = max(again for again, _, _ in found)
    front = most * len(found)
    first, firsts, parents = front, [], []
    for _, known, nodes in found:
        firsts.append(first)
        parents += [-1] * known + nodes
        first += known + len(nodes)

    def column(values: list[int]) -> Tensor:
        return torch.tensor(values)

    saves = [8 + g if 0 < save_after <= again + known else -1 for g, (again, known, _) in enumerate(found)]
    return Course(
        source=column(list(range(len(found)))),
        into=column([3 + g for g in range(len(found))]),
        save_line=column(saves),
        save_after=column([save_after] * len(found)),
        again=column([again for again, _, _ in found]),
        again_first=column([g * most for g in range(len(found))]),
        first=column(firsts),
        known=column([known for _, known, _ in found]),
        nodes=column([len(nodes) for _, _, nodes in found]),
        parents=column(parents),
        front=front,
    )


def rows_of(course: Course, seed: int, delta: bool) -> tuple[Tensor, ...]:
    torch.manual_seed(seed)
    count = course.front + len(course.parents)
    query, key = torch.randn(2, count, KEY_HEADS, KEYS)
    decay, rate = torch.rand(2, count, HEADS)
    return query, key, torch.randn(count, HEADS, VALUES), decay, rate if delta else None  # type: ignore[return-value]


def remembering(states: Tensor) -> Tensor:
    """Memory that holds states [lines, heads, keys, values]."""
    lines, heads, keys, values = states.shape
    memory = make_memory(lines, heads, keys, values, torch.device("cpu"))
    write_states(memory, torch.arange(len(states)), states)
    return memory


def recalled(memory: Tensor) -> Tensor:
    return read_states(memory, torch.arange(len(memory)), VALUES)


def by_formula(state: Tensor, rows: tuple[Tensor, ...], row: int) -> tuple[Tensor, Tensor]:
    """One row of one sequence: the state after it and what it reads, in float64."""
    query, key, value, decay, rate = (None if t is None else t[row].double() for t in rows)
    assert query is not None and key is not None and value is not None and decay is not None
    query, key = query.repeat_interleave(HEADS // KEY_HEADS, 0), key.repeat_interleave(HEADS // KEY_HEADS, 0)
    state = state * decay[:, None, None]
    write = value if rate is None else rate[:, None] * (value - torch.einsum("hkv,hk->hv", state, key))
    state = state + torch.einsum("hk,hv->hkv", key, write)
    return state, torch.einsum("hkv,hk->hv", state, query)


@given(groups(), st.integers(0, 6), st.booleans(), st.integers(0, 5))
def test_both_implementations_are_the_formula(found: list[Group], save_after: int, delta: bool, seed: int) -> None:
    course = course_of(found, save_after)
    rows = rows_of(course, seed, delta)
    before = torch.randn(LINES, HEADS, KEYS, VALUES)
    memories = [remembering(before), remembering(before)]
    outs = [recurrence._with_torch(memories[0], course, *rows), recurrence_numba.scan(memories[1], course, *rows)]
    want, out = before.double(), torch.zeros(len(course.parents), HEADS, VALUES, dtype=torch.float64)
    for g, (again, known, parents) in enumerate(found):
        state = want[g]
        first = int(course.first[g])
        for t in range(again + known):
            row = int(course.again_first[g]) + t if t < again else first + t - again
            state, read = by_formula(state, rows, row)
            if t >= again:
                out[row - course.front] = read
            if t + 1 == save_after:
                want[8 + g] = state
        want[3 + g] = state
        states = [state]
        for i, parent in enumerate(parents):
            after, out[first + known + i - course.front] = by_formula(states[parent + 1], rows, first + known + i)
            states.append(after)
    for memory, result in zip(memories, outs, strict=True):
        torch.testing.assert_close(recalled(memory).double(), want, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(result.double(), out, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("delta", [False, True])
def test_a_row_has_the_same_bits_however_it_comes(delta: bool) -> None:
    """Five rows as known ones, as a chain, as a branch of a tree beside others, and run again after a chain."""
    whole = course_of([(0, 6, [])], 0)
    rows = rows_of(whole, 1, delta)
    start = remembering(torch.randn(LINES, HEADS, KEYS, VALUES))
    memory = start.clone()
    want = recurrence_numba.scan(memory, whole, *rows)
    final = memory[3]

    def take(order: list[int]) -> tuple[Tensor, ...]:
        return tuple(None if t is None else t[order] for t in rows)  # type: ignore[misc]

    chain = recurrence_numba.scan(start.clone(), course_of([(0, 1, [-1, 0, 1, 2, 3])], 0), *rows)
    assert torch.equal(chain, want)
    tree = recurrence_numba.scan(
        start.clone(), course_of([(0, 1, [-1, -1, 1, 0, 2, 4, 5])], 0), *take([0, 5, 1, 2, 3, 3, 4, 5])
    )
    assert torch.equal(tree[[0, 2, 3, 5, 6, 7]], want)
    memory = start.clone()
    begun = course_of([(0, 1, [])], 0)
    recurrence_numba.scan(memory, begun, *take([0]))
    memory[0] = memory[3]
    later = recurrence_numba.scan(memory, course_of([(4, 1, [])], 0), *take([1, 2, 3, 4, 5]))
    assert torch.equal(later[0], want[5]) and torch.equal(memory[3], final)


@pytest.mark.parametrize("activate", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_convolutions(activate: bool, biased: bool) -> None:
    torch.manual_seed(2)
    x, weight = torch.randn(9, 10), torch.randn(4, 10)
    bias = torch.randn(10) if biased else None
    own = torch.arange(3, 9)
    taps = torch.stack([own, own - 1, own - 2, own - 3])
    want = torch.nn.functional.conv1d(x.T[None], weight.T[:, None], bias, groups=10)[0].T
    want = torch.nn.functional.silu(want) if activate else want
    torch.testing.assert_close(recurrence_numba.convolve(x, taps, weight, bias, activate), want)
    alone = recurrence_numba.convolve(x, taps[:, 3:4], weight, bias, activate)
    assert torch.equal(alone[0], recurrence_numba.convolve(x, taps, weight, bias, activate)[3])


def test_the_reference_convolves_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(3)
    x, weight, bias = torch.randn(9, 10), torch.randn(3, 10), torch.randn(10)
    taps = torch.randint(9, (3, 7))
    want = recurrence.convolve(x, taps, weight, bias, True)
    monkeypatch.setattr("augury.kernels.faces.asked", lambda: "torch")
    torch.testing.assert_close(recurrence.convolve(x, taps, weight, bias, True), want)
