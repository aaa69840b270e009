"""Bugs that verification code is known to catch, planted one by one: each must be seen by a check the true code passes.

A check is a function that returns how wrong something is, 0 for right. The list of bugs is MUTATIONS.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import pytest
import torch
from probs_oracle import wrong_laws
from rule_cases import sampled_step
from torch import Tensor

from augury.kernels import verify_probs
from augury.verify import exact, noise, rejection
from augury.verify.exact_production import Trial, confront, measure
from augury.verify.exact_worlds import CHANGES, FORK, HOLED, THIRDS, TREE_5, TRIPLE, Drafts, NamedTree, chain, woven
from augury.verify.rejection import clean, standard
from augury.verify.sampling import Draws, SlotSampling
from augury.verify.tree import Draft, Firsts, shape_of
from augury.verify.verdict import Verdict, draft_purpose, finish, last_noise, uniforms

pytestmark = pytest.mark.usefixtures("one_thread")

Judge = Callable[[Tensor, Draft, Tensor, Tensor], Verdict]
Noise = Callable[[Tensor, Tensor, int], Tensor]
DRAFTED: tuple[tuple[NamedTree, Drafts], ...] = (
    (chain(3), "sampled"),
    (chain(3, 1), "sampled"),
    (FORK, "sampled"),
    (TREE_5, "sampled"),
    (HOLED, "one-hot"),
    (TRIPLE, "one-hot"),
    (TRIPLE, "distinct"),
    (TREE_5, "distinct"),
)
SETTLE, CARRIED = rejection.settle, rejection.carried  # as they are before anyone patches them


@cache
def proved(name: str) -> list[list[Trial]]:
    """Part of the certificate's own lines."""
    return [
        exact.trials(exact.EXACT[name][0], woven(line.vocab, CHANGES[line.change]), line.shape, line.drafts)
        for line in exact.settings()
        if line.rule == name and line.change in ("none", "top-p")
    ]


def cells(name: str, rule: Judge) -> float:
    """Lines of the certificate in which a tensor rule decides otherwise than the exact one, or leaves another law."""
    agreements = [confront(rule, tried) for tried in proved(name)]
    return sum(agreement.wrong > 0 or agreement.error > exact.LAW_ERROR for agreement in agreements)


def bias(name: str, rule: Judge) -> float:
    """Total variation from the target, by integration, in the worst of some worlds; what integration leaves is none."""
    settings = itertools.product((THIRDS, woven(3, CHANGES["none"])), DRAFTED)
    found = max(measure(rule, world, *drafted, points=512).total_variation for world, drafted in settings)
    return found if found > 0.01 else 0


def laws(name: str, face: Callable[[Tensor, Draws, SlotSampling], Tensor]) -> float:
    """Lines of some scenarios whose processed law is not the oracle's."""
    return len(wrong_laws(face, range(25)))


def draws(name: str, purposes: tuple[int, int]) -> float:
    """Chi-square of first tokens, drawn from real noise, over its bound."""
    found = sampled_step(getattr(rejection, name), 8, 150_000, [-1, 0], purposes=purposes)
    return found if found > 1 else 0


class Keys(NamedTuple):
    """Where a step takes its noise from, and the tree that the second step tries."""

    accept: Noise = uniforms
    draft: Callable[[int, int], int] = draft_purpose
    later: tuple[int, ...] = (-1, -1)


def steps(name: str, keys: Keys) -> float:
    """Chi-square over its bound for the first two tokens of two steps, the first of which tries a chain of two."""
    rule, groups, start = getattr(rejection, name), 250_000, 5
    # After one refusal token 1 is left with an eighth, which a second draft of it is tested against.
    target, q = torch.tensor([0.1, 0.45, 0.45]), torch.tensor([0.5, 0.4, 0.1])
    seeds, go = torch.arange(groups), torch.ones(groups, dtype=torch.bool)

    def step(starts: Tensor, *parents: int) -> Tensor:
        shape = torch.tensor([parents]).expand(groups, len(parents))
        depth = shape_of(shape)[0]
        positions = starts[:, None] - 1 + depth
        drawn = [
            (q.log() + noise.gumbel(seeds, positions[:, i], keys.draft(i, int(depth[0, i])), 3)).argmax(1)
            for i in range(len(parents))
        ]
        count = torch.full((groups,), len(parents))
        draft = Draft(torch.stack(drawn, 1), shape, count, q.expand(groups, len(parents), 3))
        u = keys.accept(seeds, positions, len(parents))
        verdict = rule(target.expand(groups, len(parents) + 1, 3), draft, go, u)
        return finish(verdict, last_noise(verdict, seeds, starts)).emitted

    first = step(torch.full((groups,), start), -1, 0)
    later = step(torch.full((groups,), start + 1), *keys.later)
    second = torch.where(first[:, 1] >= 0, first[:, 1], later[:, 0])
    seen = torch.bincount(first[:, 0] * 3 + second, minlength=9)
    expected = (target[:, None] * target).flatten().double() * groups
    found = float(((seen - expected) ** 2 / expected).sum()) / (8 + 5 * math.sqrt(16))
    return found if found > 1 else 0


# What each check is given when nothing is wrong.
CHECKS: dict[str, tuple[Callable[[str, Any], float], Callable[[str], Any]]] = {
    "cells": (cells, lambda name: getattr(rejection, name)),
    "bias": (bias, lambda name: getattr(rejection, name)),
    "laws": (laws, lambda name: verify_probs.probabilities),
    "draws": (draws, lambda name: (noise.DRAFT, noise.RESAMPLE)),
    "steps": (steps, lambda name: Keys()),
}


@pytest.mark.parametrize("name", ["standard", "block"])
@pytest.mark.parametrize("check", CHECKS)
def test_the_true_code_passes(check: str, name: str) -> None:
    judge, right = CHECKS[check]
    assert judge(name, right(name)) == 0


def with_draft(name: str, change: Callable[[Draft], Draft]) -> Judge:
    return lambda p, draft, active, u: getattr(rejection, name)(p, change(draft), active, u)


def hotter(draft: Draft) -> Draft:
    if draft.probs is None:
        return draft
    return replace(draft, probs=(draft.probs**0.5) / (draft.probs**0.5).sum(-1, keepdim=True))


def row_off_by_one(p: Tensor, draft: Draft, active: Tensor, u: Tensor) -> Verdict:
    return standard(torch.cat([p[:, 1:], p[:, :1]], 1), draft, active, u)


def one_uniform_for_siblings(p: Tensor, draft: Draft, active: Tensor, u: Tensor) -> Verdict:
    return standard(p, draft, active, u.gather(1, shape_of(draft.parents)[0] - 1))


def last_law_unfiltered(logits: Tensor, draws: Draws, sampling: SlotSampling) -> Tensor:
    """Lines that nobody continues are where bonus tokens come from."""
    unfiltered = replace(sampling, top_p=torch.ones_like(sampling.top_p))
    bonus = ~torch.isin(torch.arange(len(logits)), draws.parents)
    return torch.where(
        bonus[:, None],
        verify_probs.probabilities(logits, draws, unfiltered),
        verify_probs.probabilities(logits, draws, sampling),
    )


def history_without_the_last_draft(logits: Tensor, draws: Draws, sampling: SlotSampling) -> Tensor:
    blind = replace(draws, tokens=torch.where(draws.parents >= 0, -1, draws.tokens))
    return verify_probs.probabilities(logits, blind, sampling)


def keyed_without_depth(seeds: Tensor, positions: Tensor, nodes: int) -> Tensor:
    columns = [noise.words(seeds, positions[:, i], noise.ACCEPT, nodes)[:, i] for i in range(nodes)]
    return noise.uniform(torch.stack(columns, 1))


def leftover_without_carry(
    p: Tensor, draft: Draft, active: Tensor, u: Tensor, tree: Firsts, ends: Tensor, carry: Tensor
) -> Verdict:
    return SETTLE(p, draft, active, u, tree, ends, torch.ones_like(carry))


def bonus_from_a_leftover(
    p: Tensor, draft: Draft, active: Tensor, u: Tensor, tree: Firsts, ends: Tensor, carry: Tensor
) -> Verdict:
    """The last accepted node's own proposal is taken off the law below it."""
    verdict = SETTLE(p, draft, active, u, tree, ends, carry)
    last = verdict.path.amax(1)
    q = rejection.proposal(draft, tree, last.clamp(min=0), p)
    return verdict._replace(probs=rejection.refused(clean(verdict.probs), q, last >= 0, torch.ones_like(carry[:, 0])))


def carry_above_one(tree: Firsts, parents: Tensor, target: Tensor, drafted: Tensor) -> Tensor:
    class Unclamped(torch.Tensor):
        def clamp(self, *args: object, **kwargs: object) -> Tensor:  # type: ignore[override]
            return self.as_subclass(torch.Tensor)

    return CARRIED(tree, parents, target.as_subclass(Unclamped), drafted).as_subclass(torch.Tensor)


def at_most(u: Tensor, target: Tensor, drafted: Tensor) -> Tensor:
    return (drafted > 0) & (u * drafted <= target)


class Mutation(NamedTuple):
    """A bug: the rule it is in, the checks that see it, and either what they are given or what is patched."""

    rule: str
    seen_by: tuple[str, ...]
    given: Any = None
    patch: tuple[str, Any] | None = None


ENDS = rejection.block_ends
MUTATIONS: dict[str, Mutation] = {
    # The eight of the charter.
    "draft and resample share their noise": Mutation("standard", ("draws",), (noise.DRAFT, noise.DRAFT)),
    "rows off by one": Mutation("standard", ("cells", "bias"), row_off_by_one),
    "residual not renormalised": Mutation("standard", ("cells", "bias"), patch=("normalised", lambda law: law)),
    "bonus sampled without top-p": Mutation("standard", ("laws",), last_law_unfiltered),
    "penalty history misses a draft": Mutation("standard", ("laws",), history_without_the_last_draft),
    "draft probabilities at another temperature": Mutation("block", ("cells", "bias"), with_draft("block", hotter)),
    "early stop in block verification": Mutation(
        "block", ("cells", "bias"), patch=("block_ends", lambda tree, held, early_stop: ENDS(tree, held, True))
    ),
    "u <= instead of <": Mutation("standard", ("cells",), patch=("passes", at_most)),
    # And some of our own.
    "siblings are tried on the whole law": Mutation(
        "standard", ("cells", "bias"), patch=("refused", lambda law, q, where, carry: law)
    ),
    "drawn without replacement, judged as with": Mutation(
        "block", ("cells", "bias"), with_draft("block", lambda draft: replace(draft, distinct=False))
    ),
    "drawn with replacement, judged as without": Mutation(
        "standard", ("cells", "bias"), with_draft("standard", lambda draft: replace(draft, distinct=True))
    ),
    "a placeholder is taken for token 0": Mutation(
        "block", ("cells",), with_draft("block", lambda draft: replace(draft, tokens=draft.tokens.clamp(min=0)))
    ),
    "siblings share a uniform": Mutation("standard", ("cells", "bias"), one_uniform_for_siblings),
    "block residual without P": Mutation("block", ("cells", "bias"), patch=("settle", leftover_without_carry)),
    "bonus drawn from a residual": Mutation("standard", ("cells", "bias"), patch=("settle", bonus_from_a_leftover)),
    "P may exceed 1": Mutation("block", ("cells", "bias"), patch=("carried", carry_above_one)),
    "a uniform serves two steps": Mutation("block", ("steps",), Keys(accept=keyed_without_depth)),
    "draft noise serves two steps": Mutation(
        "block", ("steps",), Keys(draft=lambda node, depth: noise.DRAFT, later=(-1,))
    ),
}


@pytest.mark.parametrize("bug", MUTATIONS)
def test_a_planted_bug_is_seen(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutation = MUTATIONS[bug]
    if mutation.patch is not None:
        monkeypatch.setattr(rejection, *mutation.patch)
    for check in mutation.seen_by:
        judge, right = CHECKS[check]
        given = right(mutation.rule) if mutation.given is None else mutation.given
        assert judge(mutation.rule, given) > 0, check


def test_the_charters_bugs_are_all_here() -> None:
    assert len(MUTATIONS) >= 8
