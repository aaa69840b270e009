"""Compare the engine's tensor rules with the exact ones cell by cell; measure those without an exact form."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import NamedTuple

import torch
from torch import Tensor

from augury.verify.exact_rules import Decision, Interval, Law, Scene
from augury.verify.exact_worlds import Drafts, NamedTree, ToyWorld, all_drafts, variation
from augury.verify.sampling import Outcome
from augury.verify.tree import Draft
from augury.verify.verdict import Verdict

TensorRule = Callable[[Tensor, Draft, Tensor, Tensor], Verdict]
Walk = Callable[[Tensor, Tensor, Draft], Outcome]
MARGIN = Fraction(1, 1000)  # of a cell's width, between its border and a point just inside


class Trial(NamedTuple):
    """A draft, its probability, and its possible outcomes under one rule."""

    chance: Fraction
    scene: Scene
    decisions: list[Decision]


class Agreement(NamedTuple):
    """How a tensor rule compared with the exact one."""

    points: int  # points of the uniforms at which a decision was asked for
    wrong: int  # points where the path differs
    error: float  # the largest difference between the distributions of the last token, elsewhere


class SceneTensors(NamedTuple):
    """Some scenes as tensors."""

    p: Tensor
    draft: Draft

    @classmethod
    def of(cls, scenes: Sequence[Scene], dtype: torch.dtype = torch.float64) -> SceneTensors:
        """All scenes must have the same tree."""

        known: dict[int, list[float]] = {}  # by identity: scenes share distributions, and fractions convert slowly

        def floats(law: Law) -> list[float]:
            if id(law) not in known:
                known[id(law)] = [float(mass) for mass in law]
            return known[id(law)]

        def laws(rows: Sequence[Sequence[Law]]) -> Tensor:
            return torch.tensor([[floats(law) for law in row] for row in rows], dtype=dtype)

        shape = len(scenes), len(scenes[0].parents)
        tokens = torch.tensor([scene.tokens for scene in scenes], dtype=torch.int64).view(shape)
        parents = torch.tensor([scene.parents for scene in scenes], dtype=torch.int64).view(shape)
        probs = None if scenes[0].q is None else laws([scene.q or () for scene in scenes])
        count = torch.full(shape[:1], shape[1])
        draft = Draft(tokens, parents, count, probs, scenes[0].distinct)
        return cls(laws([scene.p for scene in scenes]), draft)

    def take(self, groups: Tensor) -> SceneTensors:
        """The scenes of some groups."""
        d = self.draft
        probs = None if d.probs is None else d.probs[groups]
        return SceneTensors(
            self.p[groups], Draft(d.tokens[groups], d.parents[groups], d.count[groups], probs, d.distinct)
        )


def points_in(cell: Interval) -> tuple[float, float, float]:
    """Just inside the left border (at 0, the border itself: no rounding excuses a rule there), the middle, just inside
    the right."""
    low, high = cell
    inside = (high - low) * MARGIN
    return float(low + inside if low else low), float((low + high) / 2), float(high - inside)


def _uniforms(decisions: Sequence[Decision], nodes: int) -> Tensor:
    """Three points of every cell; for nodes that are free, values that differ from group to group."""
    spread = torch.arange(len(decisions) * 3 * nodes, dtype=torch.float64).mul_(0.6180339887498949).frac_()
    u = spread.view(len(decisions), 3, nodes)
    fixed = [(i, node, points_in(cell)) for i, d in enumerate(decisions) for node, cell in d.cell.items()]
    if fixed:
        owner, node, points = zip(*fixed, strict=True)
        u[torch.tensor(owner), :, torch.tensor(node)] = torch.tensor(points, dtype=torch.float64)
    return u.flatten(0, 1)


def confront(rule: TensorRule, trials: Sequence[Trial], dtype: torch.dtype = torch.float64) -> Agreement:
    """Compare the tensor rule's decision with the exact one, in every cell of the uniforms of every draft."""
    decisions = [decision for trial in trials for decision in trial.decisions]
    nodes = len(trials[0].scene.parents)
    owner = [i for i, trial in enumerate(trials) for _ in range(3 * len(trial.decisions))]
    stage = SceneTensors.of([trial.scene for trial in trials], dtype).take(torch.tensor(owner))
    active = torch.ones(len(owner), dtype=torch.bool)
    verdict = rule(stage.p, stage.draft, active, _uniforms(decisions, nodes))
    padded = [(*d.path, *[-1] * (nodes - len(d.path))) for d in decisions]
    path = torch.tensor(padded, dtype=torch.int64).view(-1, nodes).repeat_interleave(3, 0)
    length = torch.tensor([len(d.path) for d in decisions]).repeat_interleave(3)
    law = torch.tensor([[float(mass) for mass in d.law] for d in decisions], dtype=dtype).repeat_interleave(3, 0)
    right = (verdict.path == path).all(1) & (verdict.accepted == length)
    apart = (verdict.probs - law).abs().amax(1)[right]
    return Agreement(len(owner), int((~right).sum()), float(apart.amax()) if len(apart) else 0.0)


def confront_walk(walk: Walk, trials: Sequence[Trial]) -> Agreement:
    """Run the walk on every sequence of draws; nodes off the path draw what the draft guessed."""
    drawn, texts, owner = list[list[int]](), list[list[int]](), list[int]()
    for i, (_, scene, decisions) in enumerate(trials):
        nodes = range(-1, len(scene.tokens))
        hope = [next((scene.tokens[child] for child in scene.children(node)), 0) for node in nodes]
        for decision in decisions:
            text = [*(scene.tokens[node] for node in decision.path), decision.law.index(1)]
            draws = hope.copy()
            for node, token in zip((-1, *decision.path), text, strict=True):
                draws[node + 1] = token
            drawn.append(draws)
            texts.append(text + [-1] * (len(nodes) - len(text)))
            owner.append(i)
    draft = SceneTensors.of([trial.scene for trial in trials]).take(torch.tensor(owner)).draft
    lines = torch.tensor(drawn)
    outcome = walk(lines.flatten(), torch.arange(len(lines)) * lines.shape[1], draft)
    wrong = (outcome.emitted != torch.tensor(texts)).any(1)
    return Agreement(len(lines), int(wrong.sum()), 0.0)


class Measured(NamedTuple):
    """What a tensor rule does to a world, by integration over its uniforms."""

    points: int
    total_variation: float
    accepted: float


def measure(rule: TensorRule, world: ToyWorld, shape: NamedTree, drafts: Drafts, points: int = 1 << 13) -> Measured:
    """Bias and expected length of a rule whose cells have no simple form, from evenly spread uniforms."""
    chances, scenes = zip(*all_drafts(world, shape, drafts), strict=True)
    owner = torch.arange(len(scenes)).repeat_interleave(points)
    stage = SceneTensors.of(scenes).take(owner)
    cube = torch.quasirandom.SobolEngine(len(shape.parents), scramble=True, seed=1)  # type: ignore[no-untyped-call]
    u = cube.draw(points, dtype=torch.float64).repeat(len(scenes), 1)
    verdict = rule(stage.p, stage.draft, torch.ones(len(owner), dtype=torch.bool), u)
    weight = torch.tensor([float(chance) for chance in chances], dtype=torch.float64)[owner] / points
    stopped = dict(_emitted(verdict, weight, world.vocab))
    apart = variation(world, stopped, shape.depth + 1, 0.0)
    return Measured(len(owner), apart, float((verdict.accepted * weight).sum()))


def _emitted(verdict: Verdict, weight: Tensor, vocab: int) -> Iterator[tuple[tuple[int, ...], float]]:
    """How likely each text is to be emitted."""
    law = verdict.probs / verdict.probs.sum(1, keepdim=True) * weight[:, None]
    # A text is one number, its tokens and -1 being digits: whole rows are sorted ten times as slowly.
    places = (vocab + 1) ** torch.arange(verdict.tokens.shape[1] - 1, -1, -1)
    texts, group = ((verdict.tokens + 1) * places).sum(1).unique(return_inverse=True)  # type: ignore[no-untyped-call]
    sums = law.new_zeros(len(texts), vocab).index_add(0, group, law)
    for text, chances in zip((texts[:, None] // places % (vocab + 1) - 1).tolist(), sums.tolist(), strict=True):
        accepted = tuple(token for token in text if token >= 0)
        yield from (((*accepted, last), chance) for last, chance in enumerate(chances))
