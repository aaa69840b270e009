"""Time of vLLM's own rule and of `coupled` in a real vLLM on a CPU: python tests/helpers/vllm_rule_speed.py [REQUESTS].

One worker's sampler, no server. Processor time of this thread, so that other programs on the machine count little;
the two take turns, step by step. vLLM's own rule is timed as it is and, because on a CPU it verifies at temperatures
that nobody set (its issue 55005), with that part mended too.
"""

from __future__ import annotations

import statistics
import sys
import time
from types import SimpleNamespace
from typing import Any

import torch

VOCABULARY, TOKENS, STEPS, SEEDED = 49_152, 4, 60, True


def metadata(requests: int, generators: dict[int, Any]) -> Any:
    """Requests at temperature 0.8."""
    from vllm.v1.sample.logits_processor import LogitsProcessors
    from vllm.v1.sample.metadata import SamplingMetadata

    return SamplingMetadata(
        temperature=torch.full((requests,), 0.8),
        all_greedy=False,
        all_random=True,
        top_p=None,
        top_k=None,
        generators=generators,
        max_num_logprobs=None,
        no_penalties=True,
        prompt_token_ids=None,
        frequency_penalties=torch.zeros(requests),
        presence_penalties=torch.zeros(requests),
        repetition_penalties=torch.ones(requests),
        output_token_ids=[[] for _ in range(requests)],
        allowed_token_ids_mask=None,
        bad_words_token_ids={},
        logitsprocs=LogitsProcessors(),
    )


def batch(requests: int, dice: torch.Generator) -> tuple[Any, torch.Tensor]:
    """Drafts of which the first half of the tokens is likely, and the logits of all rows."""
    from vllm.v1.spec_decode.metadata import SpecDecodeMetadata

    logits = 3 * torch.randn(requests * (TOKENS + 1), VOCABULARY, generator=dice)
    rows = torch.arange(requests * (TOKENS + 1)).view(requests, TOKENS + 1)
    drafts = logits[rows[:, :TOKENS].flatten()].argmax(-1).view(requests, TOKENS)
    logits[rows[:, : TOKENS // 2].flatten(), drafts[:, : TOKENS // 2].flatten()] += 12
    made = SpecDecodeMetadata.make_dummy(drafts.tolist(), torch.device("cpu"))
    made.target_logits_indices, made.bonus_logits_indices = rows[:, :TOKENS].flatten(), rows[:, TOKENS]
    return made, logits


def main() -> None:
    """Print the median of each, and the spread between quarters."""
    from vllm.platforms import current_platform
    from vllm.v1.sample import rejection_sampler as module
    from vllm.v1.sample.sampler import Sampler

    from augury.plugins.vllm import register
    from augury.plugins.vllm.coupled_v1 import expanded

    current_platform.import_kernels()
    current_platform.register_triton_kernel_overrides()  # as a worker does
    register()
    torch.set_num_threads(1)
    requests = int(sys.argv[1]) if len(sys.argv) > 1 else 16
    theirs = module.expand_batch_to_tokens
    ways = {"vLLM's own": ("standard", theirs), "its own, mended": ("standard", expanded), "coupled": ("coupled", None)}
    samplers = {}
    for name, (rule, expand) in ways.items():
        config = SimpleNamespace(rejection_sample_method=rule, num_speculative_tokens=TOKENS)
        samplers[name] = module.RejectionSampler(Sampler(), config, torch.device("cpu")), expand or expanded
    times: dict[str, list[float]] = {name: [] for name in ways}
    generators = {i: torch.Generator().manual_seed(i) for i in range(requests)} if SEEDED else {}
    dice = torch.Generator().manual_seed(1)
    for _ in range(STEPS):
        for name, (sampler, expand) in samplers.items():
            module.expand_batch_to_tokens = expand
            drafted, logits = batch(requests, dice)
            began = time.thread_time()
            sampler(drafted, None, logits, metadata(requests, generators))
            times[name].append(1000 * (time.thread_time() - began))
    for name, found in times.items():
        low, middle, high = statistics.quantiles(found[5:], n=4)
        print(f"{name}: {middle:.1f} ms a step ({low:.1f} to {high:.1f}), {requests} requests, K={TOKENS}")


if __name__ == "__main__":
    main()
