"""The proof that the rules are lossless: every outcome in a small world, summed in rational numbers.

For one rule, kind of draft, tree and transform: every draft, every outcome of its tests, every last token. The rest of
the text is drawn from the target's own distribution, and the joint distribution of the whole text is compared with the
target's. The tensor code that the engine runs has to make the same decision in every cell of the uniforms.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from functools import partial
from typing import NamedTuple

import torch

from augury.verify import exact_rules, lossy, rejection
from augury.verify.exact_production import Agreement, TensorRule, Trial, Walk, confront, confront_walk, measure
from augury.verify.exact_rules import ZERO, Rule
from augury.verify.exact_worlds import (
    CHANGES,
    FORK,
    HOLED,
    THIRDS,
    TREE_4,
    TREE_5,
    TREE_6,
    TRIPLE,
    Drafts,
    NamedTree,
    Prefix,
    ToyWorld,
    all_drafts,
    chain,
    variation,
    woven,
)
from augury.verify.verdict import Verdict


class Proof(NamedTuple):
    """What the enumeration of one setting found."""

    cases: int  # drafts x outcomes of their tests x last tokens
    total_variation: Fraction
    accepted: Fraction  # expected number of accepted drafts


def trials(rule: Rule, world: ToyWorld, shape: NamedTree, drafts: Drafts) -> list[Trial]:
    """Every draft with all its possible outcomes."""
    return [Trial(chance, scene, list(rule(scene))) for chance, scene in all_drafts(world, shape, drafts)]


def prove(world: ToyWorld, length: int, tried: Sequence[Trial]) -> Proof:
    """Add up what the trials emit, and compare the distribution of texts of `length` tokens with the target's."""
    stopped: defaultdict[Prefix, Fraction] = defaultdict(lambda: ZERO)
    cases, accepted = 0, ZERO
    for trial in tried:
        for decision in trial.decisions:
            chance = trial.chance * decision.chance
            accepted += chance * len(decision.path)
            emitted = tuple(trial.scene.tokens[node] for node in decision.path)
            for last, mass in enumerate(decision.law):
                if mass:
                    cases += 1
                    stopped[*emitted, last] += chance * mass
    return Proof(cases, variation(world, stopped, length, ZERO), accepted)


class ProofCase(NamedTuple):
    """One line of the certificate, to be proved."""

    rule: str
    drafts: Drafts
    shape: NamedTree
    change: str
    vocab: int = 3


class CertificateLine(NamedTuple):
    """One line of the certificate; for a lossy rule it says how lossy, and the numbers are measured floats."""

    rule: str
    lossless: bool
    drafts: Drafts
    shape: str
    transform: str
    vocab: int
    cases: int
    total_variation: Fraction | float
    accepted: Fraction | float
    production: Agreement | None  # how the engine's own code compared; None where it was not run or is what is measured

    @property
    def holds(self) -> bool:
        """Whether the result is what its rule promises."""
        if not self.lossless:
            return True
        agrees = self.production is None or (self.production.wrong == 0 and self.production.error < LAW_ERROR)
        return self.total_variation == 0 and agrees


LAW_ERROR = 1e-12  # the rounding error that float64 may add to a distribution
EXACT: dict[str, tuple[Rule, TensorRule | None]] = {
    "standard": (exact_rules.standard, rejection.standard),
    "block": (exact_rules.block, rejection.block),
    "coupled": (exact_rules.coupled, None),
}
SHAPES: dict[Drafts, tuple[NamedTree, ...]] = {
    "one-hot": (chain(1), chain(2), chain(3), chain(4), chain(3, 1), TRIPLE, TREE_4, TREE_5, TREE_6, HOLED),
    "sampled": (chain(1), chain(2), chain(3), chain(4), chain(3, 1), FORK, TRIPLE, TREE_4, TREE_5, TREE_6, HOLED),
    "distinct": (FORK, TRIPLE, TREE_4, TREE_5, TREE_6),
}


def settings() -> list[ProofCase]:
    """Everything the certificate proves."""
    found = [
        ProofCase(rule, drafts, shape, change)
        for rule in EXACT
        for drafts, shapes in SHAPES.items()
        for shape in shapes
        for change in CHANGES
    ]
    # Two tokens are not enough for three children.
    return [*found, *(ProofCase(rule, drafts, TRIPLE, "none", 2) for rule in EXACT for drafts in SHAPES)]


def certify(setting: ProofCase, walk: Walk | None = None) -> CertificateLine:
    """Prove one line; `walk` is the engine's, for the coupled rule."""
    rule, drafts, shape, change, vocab = setting
    world, (exact, tensor) = woven(vocab, CHANGES[change]), EXACT[rule]
    tried = trials(exact, world, shape, drafts)
    production: Agreement | None = None
    if tensor is not None:
        production = confront(tensor, tried)
    elif walk is not None:
        production = confront_walk(walk, tried)
    return CertificateLine(
        rule, True, drafts, shape.name, change, vocab, *prove(world, shape.depth + 1, tried), production
    )


def lossy_lines() -> Iterator[CertificateLine]:
    """The bias of the lossy rules: p = (1/3, 2/3), q = (2/3, 1/3), three drafts."""

    def with_entropy(judge: Callable[..., Verdict]) -> TensorRule:
        return lambda p, *rest: judge(p, *rest, spread=-(p * (p + lossy.RAW_FLOOR).log()).sum(-1))

    rates = torch.tensor(lossy.conditional_rates([0.8, 0.6, 0.4]))
    rules: dict[str, TensorRule] = {
        "typical": lossy.typical,
        "entropy": with_entropy(lossy.entropy),
        "ascend_block": lossy.ascend_block,
        "ascend_block with entropy": with_entropy(lossy.ascend_block),
        "synthetic .8 .6 .4": partial(lossy.synthetic, rates=rates),
    }
    for name, rule in rules.items():
        measured = measure(rule, THIRDS, chain(3), "sampled")
        yield CertificateLine(name, False, "sampled", "chain 3", "none", 2, *measured, None)


def certificate(walk: Walk | None = None) -> list[CertificateLine]:
    """The whole proof; takes seconds."""
    return [*(certify(setting, walk) for setting in settings()), *lossy_lines()]
