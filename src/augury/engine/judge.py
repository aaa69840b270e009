"""Which drafts become text: the rule of this engine, applied to one pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from augury.config.speculative import SpeculativeConfig
from augury.engine.rows import Layout
from augury.kernels import verify, verify_probs
from augury.verify.lossy import conditional_rates, raw_entropy
from augury.verify.rules import RULES, coupled
from augury.verify.sampling import Outcome, SlotSampling
from augury.verify.tree import shape_of
from augury.verify.verdict import finish, last_noise, uniforms

Judge = Callable[[Tensor, Layout, SlotSampling, Tensor], Outcome]  # logits, layout, parameters, slots of the groups


def make_judge(config: SpeculativeConfig | None, device: torch.device) -> Judge:
    """The rule a configuration asks for; without speculation it is `coupled` on empty drafts."""
    rule = config.rule if config else "coupled"
    if rule == "coupled" or config is None:
        ops = verify.choose(device)

        def by_coupling(logits: Tensor, layout: Layout, sampling: SlotSampling, slots: Tensor) -> Outcome:
            return coupled(logits, layout.draws, sampling, layout.first, layout.draft, ops)

        return by_coupling
    return _by_rejection(rule, config, device)


def _by_rejection(rule: str, config: SpeculativeConfig, device: torch.device) -> Judge:
    """A rule over probabilities, with noise of its own for tests and for the last token."""
    probabilities, decide = verify_probs.choose(device), RULES[rule].judge
    assert decide is not None
    fixed, wants_entropy = _parameters(rule, config, device)

    def judge(logits: Tensor, layout: Layout, sampling: SlotSampling, slots: Tensor) -> Outcome:
        draft, ends, active = layout.draft, layout.ends, layout.first >= 0
        nodes = draft.tokens.shape[1]
        lines = (layout.first[:, None] + torch.arange(nodes + 1, device=logits.device)).clamp(0, len(logits) - 1)
        law = probabilities(logits, layout.draws, sampling)[lines]
        extra = {"spread": raw_entropy(logits)[lines]} if wants_entropy else {}
        seeds = sampling.seed[slots]
        tests = uniforms(seeds, ends[:, None] - 1 + shape_of(draft.parents)[0], nodes)
        verdict = decide(law, draft, active, tests, **fixed, **extra)
        return finish(verdict, last_noise(verdict, seeds, ends))

    return judge


def _parameters(rule: str, config: SpeculativeConfig, device: torch.device) -> tuple[dict[str, Any], bool]:
    """What a rule takes besides laws and noise, and whether it reads the target's entropy."""
    if rule == "typical":
        given = {"threshold": config.posterior_threshold, "alpha": config.posterior_alpha}
        return {name: value for name, value in given.items() if value is not None}, False
    if rule == "synthetic":
        rates = conditional_rates(config.synthetic_acceptance_rates or [])
        return {"rates": torch.tensor(rates, dtype=torch.float64, device=device)}, False
    sampler = config.rejection_sampler_config
    if rule not in ("entropy", "ascend_block"):
        return {}, False
    given = {"threshold": sampler.posterior_threshold, "alpha": sampler.posterior_alpha} if sampler else {}
    return given, rule == "entropy" or bool(sampler and sampler.enable_entropy_verify)
