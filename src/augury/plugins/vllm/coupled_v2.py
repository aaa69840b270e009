"""The coupled rule in vLLM's V2 runner: a drafted token is right if it is the one that would have been drawn anyway.

V2 draws plain tokens with noise that is a function of seed, position and token. Verification is given the same draw
for every row, and then only compares: a seeded request gets the same text whatever was drafted, and a greedy draft is
accepted with the same probability as by rejection, p(token).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from augury.plugins.vllm.coupled import COUPLED, RULE, DoesNotFit

SWITCH = "use_block_verification"  # an argument of every call, set by the sampler from its configuration
NEEDED = (
    "target_logits",
    "draft_sampled",
    "cu_num_logits",
    "pos",
    "expanded_idx_mapping",
    "temperature",
    "seed",
    "num_speculative_steps",
    "use_fp64",
)
DRAWN = ("logits", "expanded_idx_mapping", "temperature", "seed", "pos", "apply_temperature", "use_fp64")


def install() -> None:
    """Patch the runner's verification to follow the rule that the sampler is configured with."""
    from vllm.triton_utils import HAS_TRITON
    from vllm.v1.worker.gpu.sample.gumbel import gumbel_sample
    from vllm.v1.worker.gpu.spec_decode import rejection_sampler

    if not HAS_TRITON:  # vLLM then runs V1, unless it is forced to run V2
        _refuse(rejection_sampler.RejectionSampler)
        return
    import augury.plugins.vllm.walk  # noqa: F401  (needs Triton, whose lack must show here and not at a request)

    if missing := set(DRAWN).difference(inspect.signature(gumbel_sample).parameters):
        raise DoesNotFit(f"gumbel_sample has no {sorted(missing)}")
    theirs = rejection_sampler.rejection_sample
    names = tuple(inspect.signature(theirs).parameters)
    if missing := {*NEEDED, SWITCH}.difference(names):
        raise DoesNotFit(f"rejection_sample has no {sorted(missing)}")
    if f"{SWITCH}=self.{SWITCH}" not in inspect.getsource(rejection_sampler.RejectionSampler):
        raise DoesNotFit(f"the V2 runner passes no {SWITCH}")
    draw = functools.partial(gumbel_sample, **_not_drafting(gumbel_sample))

    @functools.wraps(theirs)
    def rejection_sample(*args: Any, **named: Any) -> tuple[Any, Any]:
        if named.get(SWITCH) is not COUPLED:
            return theirs(*args, **named)  # type: ignore[no-any-return]
        given = {**dict(zip(names, args, strict=False)), **named}
        return verify(draw, **{name: given[name] for name in NEEDED})

    rejection_sampler.rejection_sample = rejection_sample
    _follow_the_configuration(rejection_sampler.RejectionSampler)


def verify(
    draw: Callable[..., Any],
    target_logits: Any,
    draft_sampled: Any,
    cu_num_logits: Any,
    pos: Any,
    expanded_idx_mapping: Any,
    temperature: Any,
    seed: Any,
    num_speculative_steps: int,
    use_fp64: bool,
) -> tuple[Any, Any]:
    """Draw every row as plain decoding does, then keep draws as far as the draft agrees."""
    from augury.plugins.vllm.walk import walk

    drawn = draw(
        target_logits, expanded_idx_mapping, temperature, seed, pos, apply_temperature=False, use_fp64=use_fp64
    )
    return walk(drawn, draft_sampled, cu_num_logits, num_speculative_steps)


def _not_drafting(gumbel_sample: Callable[..., Any]) -> dict[str, bool]:
    """Arguments for the target's noise: since 0.29 drafts have noise of their own."""
    return {"is_drafting": False} if "is_drafting" in inspect.signature(gumbel_sample).parameters else {}


def _follow_the_configuration(sampler: Any) -> None:
    def couple(made: Any) -> None:
        made.use_block_verification = COUPLED

    _where_coupled(sampler, couple)


def _refuse(sampler: Any) -> None:
    """Without Triton there is no walk: the rule must not be taken and then not followed."""

    def stop(made: Any) -> None:
        raise ValueError(
            f'rejection_sample_method "{RULE}" needs Triton with the V2 runner: install it, or leave it out.'
        )

    _where_coupled(sampler, stop)


def _where_coupled(sampler: Any, then: Callable[[Any], None]) -> None:
    start = sampler.__init__

    @functools.wraps(start)
    def begin(self: Any, *args: Any, **named: Any) -> None:
        start(self, *args, **named)
        config = inspect.signature(start).bind(self, *args, **named).arguments.get("spec_config")
        if getattr(config, "rejection_sample_method", None) == RULE:
            then(self)

    sampler.__init__ = begin
