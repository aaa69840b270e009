"""Verification: which draft tokens are accepted, by the rule of this engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from augury.config.speculative import SpeculativeConfig
from augury.engine.rows import PassLayout
from augury.kernels import verify, verify_probs
from augury.kernels.faces import face
from augury.kernels.verify_share import draw_share
from augury.model.target import Target
from augury.verify.lossy import conditional_rates, raw_entropy, synthetic_walk
from augury.verify.rules import RULES, coupled
from augury.verify.sampling import Draws, Outcome, SlotSampling
from augury.verify.tree import shape_of
from augury.verify.verdict import finish, last_noise, uniforms

Decide = Callable[
    [Tensor, PassLayout, SlotSampling, Tensor], Outcome
]  # logits, layout, parameters, slots of the groups
Draw = Callable[[Tensor, Draws, SlotSampling], Tensor]


class Judge(NamedTuple):
    """A verification rule, prepared for a device."""

    decide: Decide
    draw: Draw | None = None  # how the target's tokens are drawn, for rules that compare drafts with them
    rates: Tensor | None = None  # float64 [K]: accept at random, at these rates if the token before was accepted

    @property
    def keeps_masks(self) -> bool:
        """Whether a token that a grammar forbids is never accepted even if it stays in a draft: it is never drawn."""
        return self.draw is not None and self.rates is None

    def __call__(self, logits: Tensor, layout: PassLayout, sampling: SlotSampling, slots: Tensor) -> Outcome:
        """The outcome of one pass."""
        return self.decide(logits, layout, sampling, slots)


def make_judge(config: SpeculativeConfig | None, device: torch.device, target: Target | None = None) -> Judge:
    """The rule a configuration asks for; without speculation it is `coupled` on empty drafts.

    The ranks of a `target` that is divided draw together.
    """
    rule = config.rule if config else "coupled"
    ops = verify.choose(device)
    if target is not None and target.words is not None:
        ops = ops._replace(draw=_among_ranks(ops.draw, target))
    if rule == "coupled" or config is None:

        def by_coupling(logits: Tensor, layout: PassLayout, sampling: SlotSampling, slots: Tensor) -> Outcome:
            return coupled(logits, layout.draws, sampling, layout.first, layout.draft, ops)

        return Judge(by_coupling, ops.draw)
    if rule == "synthetic":
        return _by_rates(conditional_rates(config.synthetic_acceptance_rates or []), device, ops.draw)
    decide = _by_rejection(rule, config, device)
    if rule in ("standard", "block") and face(device) == "triton":
        decide = _in_triton(rule, decide)
    return Judge(decide)


def _in_triton(rule: str, otherwise: Decide) -> Decide:
    """A rejection rule over chains that writes no probabilities to memory; drafts that branch go to `otherwise`."""
    from augury.kernels import acceptance_triton, block_triton, rejection_triton, standard_triton

    judge = standard_triton.standard if rule == "standard" else block_triton.block

    def decide(logits: Tensor, layout: PassLayout, sampling: SlotSampling, slots: Tensor) -> Outcome:
        draft, seeds = layout.draft, sampling.seed[slots]
        if not rejection_triton.runs(draft):
            return otherwise(logits, layout, sampling, slots)
        tests = acceptance_triton.uniforms(seeds, layout.ends, draft.parents)
        return judge(logits, layout.draws, sampling, layout.first, draft, tests, seeds, layout.ends)

    return decide


def _among_ranks(draw: Draw, target: Target) -> Draw:
    """The draw of a divided target: from a rank's share of the vocabulary if it has no more logits, else as usual."""
    assert target.words is not None and target.split is not None
    first, largest = target.words[0], target.split.ranks.largest

    def drawn(logits: Tensor, draws: Draws, sampling: SlotSampling) -> Tensor:
        if draws.own_words:
            return draw_share(logits, draws, sampling, first, largest)
        return draw(logits, draws, sampling)

    return drawn


def _by_rates(given: list[float], device: torch.device, draw: Draw) -> Judge:
    """Accept drafts at given rates, instead of where they match the tokens that the target draws."""
    rates = torch.tensor(given, dtype=torch.float64, device=device)

    def decide(logits: Tensor, layout: PassLayout, sampling: SlotSampling, slots: Tensor) -> Outcome:
        draft = layout.draft
        depth = shape_of(draft.parents)[0]
        tests = uniforms(sampling.seed[slots], layout.ends[:, None] - 1 + depth, draft.tokens.shape[1])
        return synthetic_walk(draw(logits, layout.draws, sampling), layout.first, draft, tests, rates)

    return Judge(decide, draw, rates)


def _by_rejection(rule: str, config: SpeculativeConfig, device: torch.device) -> Decide:
    """A rule over probabilities, with separate noise for the acceptance tests and for the last token."""
    probabilities, decide = verify_probs.choose(device), RULES[rule].judge
    assert decide is not None
    fixed, wants_entropy = _parameters(rule, config)

    def judge(logits: Tensor, layout: PassLayout, sampling: SlotSampling, slots: Tensor) -> Outcome:
        draft, ends, active = layout.draft, layout.ends, layout.first >= 0
        nodes = draft.tokens.shape[1]
        logits_rows = (layout.first[:, None] + torch.arange(nodes + 1, device=logits.device)).clamp(0, len(logits) - 1)
        logits = logits.float()
        probs = probabilities(logits, layout.draws, sampling)[logits_rows]
        extra = {"spread": raw_entropy(logits)[logits_rows]} if wants_entropy else {}
        seeds = sampling.seed[slots]
        tests = uniforms(seeds, ends[:, None] - 1 + shape_of(draft.parents)[0], nodes)
        verdict = decide(probs, draft, active, tests, **fixed, **extra)
        return finish(verdict, last_noise(verdict, seeds, ends))

    return judge


def _parameters(rule: str, config: SpeculativeConfig) -> tuple[dict[str, Any], bool]:
    """What a rule takes besides probabilities and noise, and whether it reads the target's entropy."""
    if rule == "typical":
        given = {"threshold": config.posterior_threshold, "alpha": config.posterior_alpha}
        return {name: value for name, value in given.items() if value is not None}, False
    sampler = config.rejection_sampler_config
    if rule not in ("entropy", "ascend_block"):
        return {}, False
    given = {"threshold": sampler.posterior_threshold, "alpha": sampler.posterior_alpha} if sampler else {}
    return given, rule == "entropy" or bool(sampler and sampler.enable_entropy_verify)
