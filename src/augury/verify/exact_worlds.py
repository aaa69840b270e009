"""Small worlds to prove rules in: targets and drafters with rational distributions that depend on the whole prefix."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from functools import cache
from typing import Literal, NamedTuple, TypeVar

from augury.verify.exact_rules import ONE, ROOT, ZERO, Law, Scene, normalised

Prefix = tuple[int, ...]
Oracle = Callable[[Prefix], Law]
Drafts = Literal["one-hot", "sampled", "distinct"]
WORLD = 20  # chosen by search: few worlds this small tell every wrong rule of test_mutations.py from the right one


class ToyWorld(NamedTuple):
    """A target and a drafter over a few tokens."""

    vocab: int
    target: Oracle
    drafter: Oracle


class NamedTree(NamedTuple):
    """A tree, and which of its nodes are placeholders."""

    name: str
    parents: tuple[int, ...]
    holes: frozenset[int] = frozenset()

    @property
    def depth(self) -> int:
        """How deep it goes."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(1 + (depths[parent] if parent >= 0 else 0))
        return max(depths, default=0)


def chain(length: int, *holes: int) -> NamedTree:
    """A chain of nodes."""
    name = f"chain {length}" + "".join(f", hole at {hole + 1}" for hole in holes)
    return NamedTree(name, tuple(range(-1, length - 1)), frozenset(holes))


FORK = NamedTree("two children", (-1, -1))
TRIPLE = NamedTree("three children", (-1, -1, -1))
TREE_4 = NamedTree("tree of 4", (-1, -1, 0, 0))
HOLED = NamedTree("tree of 5, first child a hole", (-1, -1, 1, -1, 1), frozenset({0}))
TREE_5 = NamedTree("tree of 5", (-1, 0, -1, 1, 2))
TREE_6 = NamedTree("tree of 6", (-1, -1, 1, 0, 0, 2))  # paths interleave: most children do not follow their parents


def fixed(target: Law, drafter: Law) -> ToyWorld:
    """A world without history."""
    return ToyWorld(len(target), lambda prefix: target, lambda prefix: drafter)


THIRDS = fixed((Fraction(1, 3), Fraction(2, 3)), (Fraction(2, 3), Fraction(1, 3)))
TENTHS = fixed(*((Fraction(a, 10), Fraction(b, 10), Fraction(c, 10)) for a, b, c in ((2, 3, 5), (5, 3, 2))))


def weights(prefix: Prefix, vocab: int, salt: int) -> tuple[int, ...]:
    """Small whole numbers, now and then 0 but not all, that any change of the prefix changes."""
    state = salt
    for token in (*prefix, 0, 0):
        state = (state * 6364136223846793005 + 1442695040888963407 + token) % 2**64
    found = tuple((state >> (20 + 10 * v)) % 7 for v in range(vocab))
    return found if any(found) else (1,) * vocab


@cache
def woven(vocab: int, change: Change, salt: int = WORLD) -> ToyWorld:
    """A world whose distributions depend on the whole prefix; `change` is the target's sampling transform."""

    @cache
    def target(prefix: Prefix) -> Law:
        return change(normalised([Fraction(w) for w in weights(prefix, vocab, salt)]), prefix)

    @cache
    def drafter(prefix: Prefix) -> Law:
        return normalised([Fraction(w) for w in weights(prefix, vocab, salt + 2)])

    return ToyWorld(vocab, target, drafter)


Change = Callable[[Law, Prefix], Law]


def untouched(law: Law, prefix: Prefix) -> Law:
    """No transform."""
    return law


def kept(law: Law, floor: Fraction) -> Law:
    """Tokens at least as likely as the floor; ties with it stay."""
    return normalised([mass if mass >= floor else ZERO for mass in law])


def top_k(law: Law, prefix: Prefix) -> Law:
    """The two most likely tokens."""
    return kept(law, sorted(law)[-2])


def top_p(law: Law, prefix: Prefix) -> Law:
    """The most likely tokens that hold three fifths."""
    reached = ZERO
    for mass in sorted(law, reverse=True):
        reached += mass
        if reached >= Fraction(3, 5):
            return kept(law, mass)
    return law


def min_p(law: Law, prefix: Prefix) -> Law:
    """Tokens at least half as likely as the most likely."""
    return kept(law, max(law) / 2)


def penalty(law: Law, prefix: Prefix) -> Law:
    """A token's weight falls with each occurrence in the prefix."""
    return normalised([mass / (1 + prefix.count(v)) for v, mass in enumerate(law)])


CHANGES: Mapping[str, Change] = {"none": untouched, "top-k": top_k, "top-p": top_p, "min-p": min_p, "penalty": penalty}


def all_drafts(world: ToyWorld, shape: NamedTree, drafts: Drafts) -> Iterator[tuple[Fraction, Scene]]:
    """Every draft a drafter can make, with its probability."""

    def grow(tokens: Prefix, prefixes: tuple[Prefix, ...], chance: Fraction) -> Iterator[tuple[Fraction, Scene]]:
        i = len(tokens)
        if i == len(shape.parents):
            laws = tuple(world.target(prefix) for prefix in prefixes)
            q = tuple(world.drafter(prefixes[parent + 1]) for parent in shape.parents)
            sampled = None if drafts == "one-hot" else q
            yield chance, Scene(tokens, shape.parents, laws, sampled, drafts == "distinct")
            return
        above = prefixes[shape.parents[i] + 1]
        earlier = [tokens[j] for j in range(i) if shape.parents[j] == shape.parents[i] and tokens[j] >= 0]
        if i in shape.holes:
            yield from grow((*tokens, ROOT), (*prefixes, above), chance)
            return
        for token, mass in enumerate(next_draft(world.drafter(above), earlier, drafts)):
            if mass:
                yield from grow((*tokens, token), (*prefixes, (*above, token)), chance * mass)

    return grow((), ((),), ONE)


def next_draft(law: Law, earlier: list[int], drafts: Drafts) -> Law:
    """The distribution of one more child, given its earlier siblings."""
    if drafts == "one-hot":  # the most likely tokens in order, repeated when they run out
        order = sorted(range(len(law)), key=lambda token: -law[token])
        return tuple(Fraction(token == order[len(earlier) % len(law)]) for token in range(len(law)))
    if drafts == "distinct":
        left = normalised([ZERO if token in earlier else mass for token, mass in enumerate(law)])
        # A drafter that has run out of tokens repeats itself.
        return left if any(left) else tuple(Fraction(token == earlier[0]) for token in range(len(law)))
    return law


Chance = TypeVar("Chance", Fraction, float)


def variation(world: ToyWorld, stopped: Mapping[Prefix, Chance], length: int, nothing: Chance) -> Chance:
    """Total variation between the target's distribution of `length` tokens and that of texts that begin with a step.

    `stopped` is how likely a step is to emit just that prefix; the target completes it.
    """

    def apart(prefix: Prefix, ours: Chance, exact: Fraction) -> Chance:
        ours = ours + stopped.get(prefix, nothing)
        if len(prefix) == length:
            return abs(ours - exact) / 2
        law = world.target(prefix)
        return sum((apart((*prefix, v), ours * law[v], exact * law[v]) for v in range(world.vocab)), nothing)

    return apart((), nothing, ONE)
