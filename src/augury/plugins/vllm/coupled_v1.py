"""The coupled rule in vLLM's V1 runner, which n-gram, suffix and custom drafters need.

V1 draws a seeded request's token from a torch generator: one row of noise for each token, one after the other. So the
noise of the token `n` further on is the generator's n-th next row, and a generator on a GPU can be set to any row.
Verification draws the row of every position, and leaves each generator where plain decoding would have left it. That
needs the number of accepted tokens on the host: V1's drafters on the host wait for the same tokens anyway.
"""

from __future__ import annotations

import functools
import inspect
import logging
from typing import Any

from augury.plugins.vllm.coupled import COUPLED, RULE, DoesNotFit

SWITCH = "synthetic_mode"  # an argument of every call, set by the sampler from its configuration
NEEDED = (
    "draft_token_ids",
    "num_draft_tokens",
    "max_spec_len",
    "target_logits",
    "bonus_token_ids",
    "sampling_metadata",
)
NOISE = ("empty_exponential_noise_like", "sample_with_exponential_noise")  # what `_draw` shares with a plain draw
FORWARD = ("self", "metadata", "draft_probs", "logits", "sampling_metadata")
NOT_DRAWN = -1  # stands behind a request's last token
RUNNERS = (
    'Rule "%s" on the V1 runner: seeded texts equal those of plain decoding on the V1 runner. vLLM may choose V2 where '
    "nothing is drafted, and V2 draws other noise: start such a server with VLLM_USE_V2_MODEL_RUNNER=0 too."
)

logger = logging.getLogger("vllm.augury")


def install() -> None:
    """Let the runner's verification choose by the sampler's rule."""
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
        if named.get(SWITCH) is not COUPLED:
            return theirs(*args, **named)
        given = {**dict(zip(names, args, strict=False)), **named}
        return verify(**{name: given[name] for name in NEEDED}, use_fp64=bool(given.get("use_fp64_gumbel")))

    rejection_sampler.rejection_sample = rejection_sample
    _follow_the_configuration(rejection_sampler.RejectionSampler)


def verify(
    draft_token_ids: Any,
    num_draft_tokens: list[int],
    max_spec_len: int,
    target_logits: Any,
    bonus_token_ids: Any,
    sampling_metadata: Any,
    use_fp64: bool,
) -> Any:
    """Draw every drafted position as plain decoding does, and keep the draws up to the first that was not drafted."""
    import torch

    drawn = target_logits.argmax(dim=-1)
    if not sampling_metadata.all_greedy:
        sampled = _draw(target_logits, num_draft_tokens, sampling_metadata.generators, use_fp64)
        counts = torch.tensor(num_draft_tokens, device=drawn.device)
        greedy = (sampling_metadata.temperature == 0).repeat_interleave(counts, output_size=len(drawn))
        drawn = torch.where(greedy, drawn, sampled)
    found = lay_out(drawn, draft_token_ids, num_draft_tokens, max_spec_len, bonus_token_ids)
    if sampling_metadata.generators:
        taken = (found != NOT_DRAWN).sum(dim=1).tolist()
        for i, generator in sampling_metadata.generators.items():
            row = _row_of(generator, target_logits, use_fp64)
            generator.set_offset(generator.get_offset() + (taken[i] - num_draft_tokens[i] - 1) * row)
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


def _draw(logits: Any, counts: list[int], generators: dict[int, Any], use_fp64: bool) -> Any:
    """A token for each row; the generators stand behind all drafts and the token after them, and do so afterwards."""
    import torch
    from vllm.v1.sample.ops.topk_topp_sampler import empty_exponential_noise_like, sample_with_exponential_noise

    probs = logits.softmax(dim=-1, dtype=torch.float32)
    noise = empty_exponential_noise_like(probs, use_fp64)
    if len(generators) != len(counts):
        noise.exponential_()
    first = 0
    for i, count in enumerate(counts):
        if count and (generator := generators.get(i)) is not None:
            behind = generator.get_offset()
            generator.set_offset(behind - (count + 1) * _row_of(generator, logits, use_fp64))
            for row in range(first, first + count):
                noise[row].exponential_(generator=generator)
            generator.set_offset(behind)
        first += count
    return sample_with_exponential_noise(probs, noise)


@functools.lru_cache(maxsize=8)
def _measured(device: Any, size: int, use_fp64: bool) -> int:
    """How far one row of noise moves a generator."""
    import torch

    spare = torch.Generator(device)
    before = spare.get_offset()
    torch.empty(size, device=device, dtype=torch.float64 if use_fp64 else torch.float32).exponential_(generator=spare)
    return int(spare.get_offset() - before)


def _row_of(generator: Any, logits: Any, use_fp64: bool) -> int:
    return _measured(generator.device, logits.shape[-1], use_fp64)


def _check(device: Any) -> None:
    """A generator on a CPU cannot be set to a row; said at the start, since a request would be too late."""
    if str(device).startswith("cpu"):
        raise ValueError(
            f'rejection_sample_method "{RULE}" needs a GPU with the V1 runner: leave it out, or draft on a GPU.'
        )


def _follow_the_configuration(sampler: Any) -> None:
    start, forward = sampler.__init__, sampler.forward

    @functools.wraps(start)
    def begin(self: Any, *args: Any, **named: Any) -> None:
        start(self, *args, **named)
        given = inspect.signature(start).bind(self, *args, **named).arguments
        if getattr(given.get("spec_config"), "rejection_sample_method", None) == RULE:
            _check(given.get("device"))
            logger.warning(RUNNERS, RULE)
            self.synthetic_mode = COUPLED

    @functools.wraps(forward)
    def verified(self: Any, metadata: Any, draft_probs: Any, logits: Any, sampling_metadata: Any) -> Any:
        if self.synthetic_mode is COUPLED:
            # The token after a whole draft is drawn first of all, with the noise of its own position.
            for i, generator in sampling_metadata.generators.items():
                row = _row_of(generator, logits, bool(getattr(self, "use_fp64_gumbel", False)))
                generator.set_offset(generator.get_offset() + metadata.num_draft_tokens[i] * row)
        return forward(self, metadata, draft_probs, logits, sampling_metadata)

    sampler.__init__, sampler.forward = begin, verified
