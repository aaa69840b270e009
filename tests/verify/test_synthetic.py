"""`synthetic` as the engine runs it: on the target's own draws."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from rule_cases import REPEATABLE

from augury.verify import lossy
from augury.verify.tree import Draft
from augury.verify.verdict import finish


def naive_synthetic(
    draws: list[int], tokens: list[int], parents: list[int], u: list[float], rates: list[float]
) -> tuple[list[int], list[int]]:
    """The emitted tokens and the path, as one says it: down first children while their uniform is below the rate."""
    node, emitted, path = -1, [], []
    while len(path) < len(rates):
        child = next((i for i, above in enumerate(parents) if above == node and tokens[i] >= 0), None)
        if child is None or not u[child] < rates[len(path)]:
            break
        node = child
        path.append(node)
        emitted.append(tokens[node])
    return [*emitted, draws[node + 1]], path


@REPEATABLE
@given(st.integers(0, 2**32 - 1), st.booleans())
def test_synthetic_walk_is_what_one_says_it_is(seed: int, branching: bool) -> None:
    random = np.random.default_rng(seed)
    groups, nodes = 4, int(random.integers(0, 7))
    counts, lines = random.integers(0, nodes + 1, groups), []
    tokens = random.integers(-1, 5, (groups, nodes))
    line = [int(random.integers(-1, i)) if branching and i else i - 1 for i in range(nodes)]
    parents = np.array([line] * groups, dtype=np.int64).reshape(groups, nodes)
    u = random.random((groups, nodes)).astype(np.float32)
    rates = random.choice([0.0, 0.3, 0.9, 1.0], int(random.integers(0, nodes + 2))).tolist()
    first, active = [], random.random(groups) < 0.8
    for g in range(groups):
        first.append(len(lines) if active[g] else -1)
        lines += random.integers(100, 200, counts[g] + 1).tolist() if active[g] else []
    draft = Draft(*(torch.tensor(x) for x in (tokens, parents, counts)), branching=branching)
    drawn, tests = torch.tensor([*lines, 0]), torch.tensor(u)
    got = lossy.synthetic_walk(drawn, torch.tensor(first), draft, tests, torch.tensor(rates, dtype=torch.float64))
    for g in range(groups):
        used = int(counts[g])
        text, path = [], []
        if active[g]:
            text, path = naive_synthetic(
                lines[first[g] :], tokens[g, :used].tolist(), parents[g, :used].tolist(), u[g].tolist(), rates
            )
        assert got.emitted[g].tolist() == text + [-1] * (nodes + 1 - len(text))
        assert got.path[g].tolist() == path + [-1] * (nodes - len(path))
        assert (int(got.emitted_count[g]), int(got.accepted[g])) == (len(text), len(path))


@REPEATABLE
@given(st.integers(0, 2**32 - 1))
def test_synthetic_walk_has_the_law_of_synthetic(seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    groups, nodes, vocab = 3, 5, 4
    parents = torch.tensor([[-1, -1, 0, 0, 2]]).repeat(groups, 1)
    draft = Draft(torch.randint(0, vocab, parents.shape, generator=random), parents, torch.tensor([5, 3, 0]))
    u, rates = torch.rand(groups, nodes, generator=random), torch.tensor([0.8, 0.6, 0.4])
    drawn = torch.randint(0, vocab, (groups, nodes + 1), generator=random)
    certain = torch.nn.functional.one_hot(drawn, vocab).double()  # a target that says just what it has drawn
    want = finish(lossy.synthetic(certain, draft, torch.ones(groups).bool(), u, rates), torch.zeros(groups, vocab))
    got = lossy.synthetic_walk(drawn.flatten(), torch.arange(groups) * (nodes + 1), draft, u, rates)
    for name in ("emitted", "emitted_count", "accepted", "path"):
        assert torch.equal(getattr(want, name), getattr(got, name)), name
