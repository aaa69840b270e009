"""The coupled rule in vLLM's V1 runner, which n-gram, suffix and custom drafters need.

Verification draws every position with the noise that plain decoding would draw it with (noise_v1), and leaves each
generator where plain decoding would have left it. That needs the number of accepted tokens on the host: V1's drafters
on the host wait for the same tokens anyway.
"""

from __future__ import annotations

import functools
import inspect
import logging
from typing import Any

from augury.plugins.vllm.coupled import RULE, Coupled, DoesNotFit
from augury.plugins.vllm.noise_v1 import ByOffset, ByState

SWITCH = "synthetic_mode"  # an argument of every call, set by the sampler from its configuration
NEEDED = (
    "draft_token_ids",
    "num_draft_tokens",
    "max_spec_len",
    "target_logits",
    "bonus_token_ids",
    "sampling_metadata",
)
NOISE = (
    "empty_exponential_noise_like",
    "sample_with_exponential_noise",
)  # what a verified draw shares with a plain one
FORWARD = ("self", "metadata", "draft_probs", "logits", "sampling_metadata")
NOT_DRAWN = -1  # fills a request's row after its last token
RUNNERS = (
    'Rule "%s" on the V1 runner: seeded texts equal those of plain decoding on the V1 runner. vLLM may choose V2 where '
    "nothing is drafted, and V2 draws different noise: start such a server with VLLM_USE_V2_MODEL_RUNNER=0 too."
)

logger = logging.getLogger("vllm.augury")


def install() -> None:
    """Patch the runner's verification to follow the rule that the sampler is configured with."""
    from vllm.v1.sample import rejection_sampler
    from vllm.v1.sample.ops import topk_topp_sampler

    if not all(hasattr(topk_topp_sampler, name) for name in NOISE):
        raise DoesNotFit(f"V1's plain draw is no longer made of {' and '.join(NOISE)}")
    if tuple(inspect.signature(rejection_sampler.RejectionSampler.forward).parameters) != FORWARD:
        raise DoesNotFit("V1's sampler is called with something else")
    theirs = rejection_sampler.rejection_sample
    names = tuple(inspect.signature(theirs).parameters)
    if missing := {*NEEDED, SWITCH}.difference(names):
        raise DoesNotFit(f"V1's rejection_sample has no {sorted(missing)}")
    if f"{SWITCH}=self.{SWITCH}" not in inspect.getsource(rejection_sampler.RejectionSampler.forward):
        raise DoesNotFit(f"the V1 runner passes no {SWITCH}")

    @functools.wraps(theirs)
    def rejection_sample(*args: Any, **named: Any) -> Any:
        noise = named.get(SWITCH)
        if not isinstance(noise, Coupled):
            return theirs(*args, **named)
        given = {**dict(zip(names, args, strict=False)), **named}
        return verify(noise, **{name: given[name] for name in NEEDED})

    rejection_sampler.rejection_sample = rejection_sample
    _follow_the_configuration(rejection_sampler.RejectionSampler)


def verify(
    noise: Any,
    draft_token_ids: Any,
    num_draft_tokens: list[int],
    max_spec_len: int,
    target_logits: Any,
    bonus_token_ids: Any,
    sampling_metadata: Any,
) -> Any:
    """Draw every drafted position as plain decoding does, and keep the draws up to the first that was not drafted."""
    import torch

    drawn, generators = target_logits.argmax(dim=-1), sampling_metadata.generators
    if not sampling_metadata.all_greedy:
        sampled = noise.draw(target_logits, num_draft_tokens, generators)
        counts = torch.tensor(num_draft_tokens, device=drawn.device)
        greedy = (sampling_metadata.temperature == 0).repeat_interleave(counts, output_size=len(drawn))
        drawn = torch.where(greedy, drawn, sampled)
    found = lay_out(drawn, draft_token_ids, num_draft_tokens, max_spec_len, bonus_token_ids)
    if generators:
        taken = (found != NOT_DRAWN).sum(dim=1).tolist()
        noise.settle(generators, num_draft_tokens, taken, target_logits.shape[-1])
    return found


def lay_out(drawn: Any, drafted: Any, counts: list[int], most: int, bonus: Any) -> Any:
    """[requests, most + 1]: the draws of each request as far as they are valid, with the token after a whole draft."""
    import torch

    many = torch.tensor(counts, device=drawn.device)
    places = torch.arange(most + 1, device=drawn.device)
    rows = ((many.cumsum(0) - many)[:, None] + places).clamp_(max=max(len(drawn) - 1, 0))
    inside = places < many[:, None]
    tokens = torch.where(inside, drawn[rows], bonus.view(-1, 1).long()) if len(drawn) else bonus.view(-1, 1).long()
    agrees = inside & (drafted[rows] == tokens) if len(drawn) else inside
    accepted = agrees.int().cumprod(dim=1).sum(dim=1, keepdim=True)
    return torch.where(places <= accepted, tokens, NOT_DRAWN).int()


def _noise(device: Any, sampler: Any) -> ByOffset | ByState:
    """The source of noise on this device; how a CPU draws is tried at start, since at the first request is too late."""
    if not str(device).startswith("cpu"):
        return ByOffset(bool(getattr(sampler, "use_fp64_gumbel", False)))
    from vllm.v1.sample import rejection_sampler

    rejection_sampler.expand_batch_to_tokens = expanded
    return ByState(sampler.topk_topp_sampler)


def expanded(x: Any, cu_num_tokens: Any, num_tokens: int, replace_from: int = 0, replace_to: int = 0) -> Any:
    """Each request's value once for each of its drafted tokens.

    On a CPU vLLM's own (0.32) writes into a copy and returns uninitialised memory, so that drafted tokens are verified
    at arbitrary temperatures.
    """
    counts = cu_num_tokens.diff(prepend=cu_num_tokens.new_zeros(1))
    return x.masked_fill(x == replace_from, replace_to).repeat_interleave(counts, output_size=num_tokens)


def _follow_the_configuration(sampler: Any) -> None:
    start, forward = sampler.__init__, sampler.forward

    @functools.wraps(start)
    def begin(self: Any, *args: Any, **named: Any) -> None:
        start(self, *args, **named)
        given = inspect.signature(start).bind(self, *args, **named).arguments
        if getattr(given.get("spec_config"), "rejection_sample_method", None) == RULE:
            self.synthetic_mode = _noise(given.get("device"), given["sampler"])
            logger.warning(RUNNERS, RULE)

    @functools.wraps(forward)
    def verified(self: Any, metadata: Any, draft_probs: Any, logits: Any, sampling_metadata: Any) -> Any:
        if isinstance(self.synthetic_mode, ByOffset | ByState):
            self.synthetic_mode.ahead(sampling_metadata.generators, metadata.num_draft_tokens, logits.shape[-1])
        return forward(self, metadata, draft_probs, logits, sampling_metadata)

    sampler.__init__, sampler.forward = begin, verified
