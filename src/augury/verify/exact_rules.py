"""The lossless rules again, in rational arithmetic: every outcome of one draft, with its exact probability.

Written directly from the definitions, node by node, sharing nothing with the tensor code they are compared with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple

Law = tuple[Fraction, ...]
Interval = tuple[Fraction, Fraction]  # closed on the left, open on the right
ROOT = -1
ZERO, ONE = Fraction(0), Fraction(1)


class Scene(NamedTuple):
    """One draft, with the target's and the drafter's distributions."""

    tokens: tuple[int, ...]  # -1 is a placeholder
    parents: tuple[int, ...]
    p: tuple[Law, ...]  # the target's distribution at the root, then at every node
    q: tuple[Law, ...] | None = None  # the drafter's distribution at each node, without siblings; None: deterministic
    distinct: bool = False  # siblings were drawn without replacement

    def children(self, node: int) -> list[int]:
        """The real children of a node, in order."""
        return [i for i, parent in enumerate(self.parents) if parent == node and self.tokens[i] >= 0]

    def proposal(self, node: int) -> Law:
        """The distribution a node's token was drawn from."""
        if self.q is None:
            return tuple(Fraction(v == self.tokens[node]) for v in range(len(self.p[0])))
        if not self.distinct:
            return self.q[node]
        gone = {self.tokens[i] for i in self.children(self.parents[node]) if i < node}
        return normalised([ZERO if v in gone else mass for v, mass in enumerate(self.q[node])])


class Decision(NamedTuple):
    """One possible outcome of a draft."""

    chance: Fraction
    path: tuple[int, ...]  # accepted nodes
    law: Law  # of the last token
    cell: Mapping[int, Interval]  # where the uniforms of some nodes must lie; those of all others are free


Rule = Callable[[Scene], Iterator[Decision]]


def normalised(masses: Sequence[Fraction]) -> Law:
    """Masses that sum to 1, or all zero."""
    total = sum(masses, ZERO)
    return tuple(mass / total for mass in masses) if total else tuple(masses)


def residual(law: Law, q: Law, carry: Fraction = ONE) -> Law:
    """norm(max(carry * law - q, 0)); where nothing is left (no possible draft leads there) the distribution stays."""
    left = normalised([max(carry * a - b, ZERO) for a, b in zip(law, q, strict=True)])
    return left if any(left) else law


def ratio(law: Law, q: Law, token: int) -> Fraction:
    """law / q at a token, 0 if the drafter could not have drawn it."""
    return law[token] / q[token] if q[token] else ZERO


def standard(scene: Scene) -> Iterator[Decision]:
    """Multi-round rejection down the tree."""

    def at(node: int, path: tuple[int, ...]) -> Iterator[Decision]:
        return offered(scene, scene.children(node), scene.p[node + 1], path, at)

    return at(ROOT, ())


def offered(
    scene: Scene,
    children: list[int],
    law: Law,
    path: tuple[int, ...],
    onward: Callable[[int, tuple[int, ...]], Iterator[Decision]],
) -> Iterator[Decision]:
    """Offer a distribution to children in turn; from an accepted one, `onward` continues."""
    chance, cell = ONE, dict[int, Interval]()
    for child in children:
        q = scene.proposal(child)
        accept = min(ONE, ratio(law, q, scene.tokens[child]))
        if accept:
            for below in onward(child, (*path, child)):
                inside = {**cell, child: (ZERO, accept), **below.cell}
                yield Decision(chance * accept * below.chance, below.path, below.law, inside)
        if accept == 1:
            return
        chance, law = chance * (1 - accept), residual(law, q)
        cell[child] = accept, ONE
    yield Decision(chance, path, law, cell)


class BlockNode(NamedTuple):
    """A node of a block: its path, P, h, and the distribution once its first child is refused."""

    path: tuple[int, ...]
    carry: Fraction
    height: Fraction
    law: Law


def block(scene: Scene) -> Iterator[Decision]:
    """Block verification; where a block ends, the other children there begin blocks of their own."""

    def at(node: int, path: tuple[int, ...]) -> Iterator[Decision]:
        steps = block_of(scene, node, path)
        chance, cell = ONE, dict[int, Interval]()
        for i in reversed(range(len(steps))):
            step = steps[i]
            height = step.height if i else ONE  # the node where the block begins is accepted already
            if height:
                here = {**cell, **({step.path[-1]: (ZERO, height)} if i else {})}
                others = scene.children(step.path[-1] if step.path else ROOT)[1:]
                for below in offered(scene, others, step.law, step.path, at):
                    yield Decision(chance * height * below.chance, below.path, below.law, {**here, **below.cell})
            if height == 1:
                return
            chance *= 1 - height
            cell[step.path[-1]] = height, ONE

    return at(ROOT, ())


def block_of(scene: Scene, node: int, path: tuple[int, ...]) -> list[BlockNode]:
    """The first children below one another, from the node where the block begins."""
    steps, carry = list[BlockNode](), ONE
    while True:
        law, children = scene.p[node + 1], scene.children(node)
        if not children:
            return [*steps, BlockNode(path, carry, carry, law)]
        child = children[0]
        q = scene.proposal(child)
        left = sum((max(carry * a - b, ZERO) for a, b in zip(law, q, strict=True)), ZERO)
        height = left / (left + 1 - carry) if left + 1 - carry else ONE
        steps.append(BlockNode(path, carry, height, residual(law, q, carry)))
        carry = min(carry * ratio(law, q, scene.tokens[child]), ONE)
        node, path = child, (*path, child)


def coupled(scene: Scene) -> Iterator[Decision]:
    """The target draws at every node it comes to, and continues to the child that carries the draw."""

    def at(node: int, path: tuple[int, ...]) -> Iterator[Decision]:
        for token, chance in enumerate(scene.p[node + 1]):
            if not chance:
                continue
            twins = [child for child in scene.children(node) if scene.tokens[child] == token]
            if twins:
                for below in at(twins[0], (*path, twins[0])):
                    yield below._replace(chance=chance * below.chance)
            else:
                yield Decision(chance, path, tuple(Fraction(v == token) for v in range(len(scene.p[0]))), {})

    return at(ROOT, ())
