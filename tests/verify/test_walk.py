"""Walking drafts with the target's own draws emits what plain decoding emits, whatever was drafted."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from augury.kernels import verify
from augury.verify.rules import coupled
from augury.verify.sampling import Draws, Outcome, SlotSampling
from augury.verify.tree import Draft, chain_parents, shape_of

pytestmark = pytest.mark.usefixtures("one_thread")

REPEATABLE = settings(deadline=None, derandomize=True)  # the first call compiles
TORCH, NUMBA = verify.VerifyOps(verify.draw, verify.walk), verify.choose("cpu")
FACES = pytest.mark.parametrize("ops", [TORCH, NUMBA], ids=["torch", "numba"])


class Walked(NamedTuple):
    emitted: list[int]
    path: list[int]


def naive(drawn: list[int], first: int, tokens: list[int], parents: list[int], node: int = -1) -> Walked:
    """The walk as one says it: emit, look for a child, descend."""
    if first < 0:
        return Walked([], [])
    token = drawn[first + 1 + node]
    for child, (guess, parent) in enumerate(zip(tokens, parents, strict=True)):
        if parent == node and guess == token:
            below = naive(drawn, first, tokens, parents, child)
            return Walked([token, *below.emitted], [child, *below.path])
    return Walked([token], [])


def read(outcome: Outcome) -> list[Walked]:
    """The outcome group by group; its padding and counts are checked on the way."""
    groups = []
    for g, (size, accepted) in enumerate(zip(outcome.emitted_count.tolist(), outcome.accepted.tolist(), strict=True)):
        emitted, path = outcome.emitted[g].tolist(), outcome.path[g].tolist()
        assert accepted == max(0, size - 1)
        assert set(emitted[size:]) <= {-1}
        assert set(path[accepted:]) <= {-1}
        groups.append(Walked(emitted[:size], path[:accepted]))
    return groups


def random_trees(random: np.random.Generator, groups: int, nodes: int, vocab: int) -> Draft:
    """Any shape, few tokens: twins are common, and some nodes are placeholders."""
    draft = Draft.empty(groups, nodes)
    for g in range(groups):
        draft.count[g] = random.integers(nodes + 1)
        for i in range(nodes):
            draft.parents[g, i] = random.integers(-1, i)
            draft.tokens[g, i] = random.integers(-1, vocab)
    return draft


@REPEATABLE
@given(seed=st.integers(0, 10**6), groups=st.integers(1, 4), nodes=st.integers(0, 12), vocab=st.integers(1, 3))
def test_walk_is_the_naive_walk(seed: int, groups: int, nodes: int, vocab: int) -> None:
    random = np.random.default_rng(seed)
    draft = random_trees(random, groups, nodes, vocab)
    first, lines = torch.full((groups,), -1), 0
    for g in random.permutation(groups):
        if random.random() < 0.8:
            first[g] = lines
            lines += int(draft.count[g]) + 1
    drawn = torch.from_numpy(random.integers(0, vocab, max(lines, 1)))
    want = [
        naive(drawn.tolist(), int(first[g]), draft.tokens[g, :n].tolist(), draft.parents[g, :n].tolist())
        for g, n in enumerate(draft.count.tolist())
    ]
    for ops in (TORCH, NUMBA):
        assert read(ops.walk(drawn, first, draft)) == want


@FACES
def test_the_longest_draft_can_be_accepted_whole(ops: verify.VerifyOps) -> None:
    tokens = torch.arange(63)[None]
    draft = Draft(tokens, chain_parents(1, 63), torch.tensor([63]))
    assert read(ops.walk(torch.arange(64), torch.tensor([0]), draft)) == [Walked([*range(64)], [*range(63)])]


GREEDY = [  # vLLM's own vectors: drafts, the target's choices, the output
    ([[1, 2, 3]], [[1, 2, 3, 4]], [[1, 2, 3, 4]]),
    ([[1, 2, 3]], [[1, 5, 3, 4]], [[1, 5]]),
    ([[1, 2], [3]], [[1, 2, 5], [3, 4]], [[1, 2, 5], [3, 4]]),
    ([[1]], [[1, 2]], [[1, 2]]),
    ([[1]], [[2, 3]], [[2]]),
    ([[1, 2], [3, 4]], [[1, 5, 6], [3, 4, 7]], [[1, 5], [3, 4, 7]]),
    ([[]], [[5]], [[5]]),
    ([[1, 2, 3], [4, 5, 6]], [[1, 2, 7, 6], [4, 8, 6, 9]], [[1, 2, 7], [4, 8]]),
    ([[1, -1, 3]], [[1, 2, 3, 4]], [[1, 2]]),
]


@FACES
@pytest.mark.parametrize(("drafts", "choices", "output"), GREEDY)
def test_greedy_vectors(
    ops: verify.VerifyOps, drafts: list[list[int]], choices: list[list[int]], output: list[list[int]]
) -> None:
    flat = [token for row in choices for token in row]
    logits = torch.nn.functional.one_hot(torch.tensor(flat), 10).float()
    sizes = torch.tensor([len(d) for d in drafts])
    width = int(sizes.max())
    tokens = torch.tensor([d + [0] * (width - len(d)) for d in drafts], dtype=torch.int64).view(len(drafts), width)
    draft = Draft(tokens, chain_parents(len(drafts), width), sizes)
    first = torch.tensor([0, *(sizes + 1).cumsum(0).tolist()])[:-1]
    zero = torch.zeros(len(flat), dtype=torch.int64)
    draws = Draws(zero, zero + 1, zero, zero - 1, zero[None], len(flat), plain=True, greedy=True)
    outcome = coupled(logits, draws, SlotSampling.allocate(1), first, draft, ops)
    assert [walked.emitted for walked in read(outcome)] == output


class Toy:
    """A target that looks two tokens back; its slots decode together, each with random drafts."""

    def __init__(self, vocab: int, params: SlotSampling, ops: verify.VerifyOps, seed: int) -> None:
        self.table = torch.randn(vocab, vocab, vocab, generator=torch.Generator().manual_seed(seed)) * 1.5
        self.vocab, self.params, self.ops = vocab, params, ops
        self.random = np.random.default_rng(seed)

    def decode(self, slots: int, count: int, nodes: int) -> tuple[Tensor, int]:
        """At least `count` tokens for every slot from the prompt 0 0, and the number of steps."""
        history = torch.zeros(slots, 2 + count * (nodes + 1), dtype=torch.int64)
        length = torch.full((slots,), 2)
        steps = 0
        while int(length.min()) < count + 2:
            draft = random_trees(self.random, slots, nodes, self.vocab)
            outcome = self.step(history, length, draft)
            for g, (emitted, _) in enumerate(read(outcome)):
                fresh, end = torch.tensor(emitted), int(length[g]) + len(emitted)
                history[g, int(length[g]) : end] = fresh
                if self.params.counts is not None:
                    self.params.counts[g] += torch.bincount(fresh, minlength=self.vocab).int()
                length[g] = end
            steps += 1
        return history[:, 2 : count + 2], steps

    def step(self, history: Tensor, length: Tensor, draft: Draft) -> Outcome:
        """One pass: a line for every root and every node, counted or not."""
        slots, nodes = draft.tokens.shape
        first = torch.arange(slots) * (nodes + 1)
        last = history.gather(1, length[:, None] - 1)
        own = torch.cat([last, draft.tokens], 1)
        depth = torch.cat([torch.zeros_like(last), shape_of(draft.parents)[0]], 1)
        parents = torch.cat([torch.full_like(last, -1), first[:, None] + 1 + draft.parents], 1).flatten()
        before = torch.where(parents >= 0, own.flatten()[parents.clamp(min=0)], 0).view(slots, -1)
        before[:, 0] = history.gather(1, length[:, None] - 2)[:, 0]
        logits = self.table[before.clamp(min=0), own.clamp(min=0)].flatten(0, 1)
        draws = Draws(
            torch.arange(slots).repeat_interleave(nodes + 1), (length[:, None] + depth).flatten(), own.flatten(),
            parents, history, len(parents),
        )  # fmt: skip
        return coupled(logits, draws, self.params, first, draft, self.ops)


def greedy(slots: int, vocab: int) -> SlotSampling:
    return SlotSampling.allocate(slots)


def sampled(slots: int, vocab: int) -> SlotSampling:
    params = SlotSampling.allocate(slots)
    params.temperature[:], params.seed = 0.8, torch.arange(slots) + 3
    return params


def everything(slots: int, vocab: int) -> SlotSampling:
    params = sampled(slots, vocab)
    params.top_k[:], params.top_p[:], params.penalized[:] = 4, 0.95, True
    params.frequency[:], params.repetition[:] = 0.02, 1.1
    params.min_length[:], params.stops = 60, torch.full((slots, 1), 1)
    params.bad_words = torch.tensor([[[2, 0, 3], [-1, 4, 4]]]).repeat(slots, 1, 1)
    params.counts = torch.zeros(slots, vocab, dtype=torch.int32)
    params.in_prompt = torch.zeros(slots, vocab, dtype=torch.bool).index_fill(1, torch.tensor([0]), True)
    return params


@FACES
@pytest.mark.parametrize("kind", [greedy, sampled, everything])
def test_drafts_never_change_the_text(ops: verify.VerifyOps, kind: Callable[[int, int], SlotSampling]) -> None:
    slots, vocab, count = 2, 5, 200
    plain, steps = Toy(vocab, kind(slots, vocab), ops, seed=1).decode(slots, count, nodes=0)
    assert steps == count
    drafted, fewer = Toy(vocab, kind(slots, vocab), ops, seed=1).decode(slots, count, nodes=9)
    assert torch.equal(plain, drafted)
    assert fewer < 0.8 * steps  # the drafts were of use
    if kind is everything:
        text = plain[0].tolist()
        assert 1 not in text[: 60 - 2]
        assert not any(text[i : i + 3] == [2, 0, 3] or text[i : i + 2] == [4, 4] for i in range(count))


@FACES
def test_joint_law_of_two_tokens(ops: verify.VerifyOps) -> None:
    slots, vocab = 3000, 3
    params = sampled(slots, vocab)
    params.temperature[:] = 1.0
    toy = Toy(vocab, params, ops, seed=2)
    text, _ = toy.decode(slots, 2, nodes=4)
    seen = torch.bincount(text[:, 0] * vocab + text[:, 1], minlength=vocab**2)
    table = torch.softmax(toy.table.double(), -1)
    law = (table[0, 0][:, None] * table[0]).flatten()  # p(a | 0 0) p(b | 0 a)
    chi_square = float(((seen - slots * law) ** 2 / (slots * law)).sum())
    assert chi_square < vocab**2 - 1 + 4 * math.sqrt(2 * (vocab**2 - 1))
