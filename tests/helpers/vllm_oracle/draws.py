"""vLLM's own samplers on a CPU: rows verified together by the coupled rule, and the same rows drawn one by one.

Both sides are the release's code; stood in for are the buffers of a GPU, and generators that can be set to a row.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

WIDE, SEED, STEPS = 2500, 7, 3  # tokens: more than one block of the kernel, and the last one is not whole


def v2_draws_alike() -> bool:
    """Three requests, in chunks where the release makes chunks, with drafts that are right, wrong and barred."""
    import numpy as np
    import torch
    from vllm.v1.worker.gpu.spec_decode import rejection_sampler as module

    from augury.plugins.vllm.coupled import COUPLED

    counts = [4, 1, 3]
    starts = np.cumsum([0, *counts]).astype(np.int32)
    logits = torch.randn(sum(counts), WIDE, generator=torch.Generator().manual_seed(SEED))
    slots = torch.repeat_interleave(torch.tensor([2, 0, 1], dtype=torch.int32), torch.tensor(counts))
    places = torch.cat([torch.arange(n) + 10 * i for i, n in enumerate(counts, 1)])
    states = SimpleNamespace(
        temperature=SimpleNamespace(gpu=torch.tensor([0.8, 0.0, 1.0])),
        top_k=SimpleNamespace(np=np.full(3, WIDE)),
        seeds=SimpleNamespace(gpu=torch.tensor([5, 6, 1 << 40])),
        max_num_logprobs=lambda _: -1,
    )
    plain = torch.cat(
        [_plain(logits[i : i + 1], slots[i : i + 1], places[i : i + 1], states) for i in range(len(slots))]
    )
    read = torch.cat([plain.new_tensor([9]), plain[:-1]]).int()
    read[2], read[6] = (int(plain[1]) + 1) % WIDE, -1  # the second draft of the first request, the first of the last
    sampler = SimpleNamespace(
        sampling_states=states,
        use_fp64_gumbel=False,
        compute_nans=False,
        logprobs_mode="raw_logprobs",
        return_sampling_mask=False,
        apply_sampling_params=lambda logits, *_, **__: logits,
        req_states=SimpleNamespace(prefill_len=SimpleNamespace(gpu=torch.zeros(3, dtype=torch.int32))),
    )
    local = torch.cat([torch.arange(n) for n in counts]).int()
    batch = SimpleNamespace(
        input_ids=read,
        positions=places,
        logits_indices=torch.arange(len(slots)),
        cu_num_logits=torch.tensor(starts),
        cu_num_logits_np=starts,
        idx_mapping=slots[starts[:-1]],
        idx_mapping_np=slots[starts[:-1]].numpy(),
        num_reqs=3,
        expanded_idx_mapping=slots,
        expanded_local_pos=local,
        seq_lens=torch.full((3,), 99, dtype=torch.int32),
        seq_lens_cpu_upper_bound=torch.full((3,), 99, dtype=torch.int32),
    )
    config = SimpleNamespace(
        num_speculative_tokens=STEPS, rejection_sample_method="coupled", enable_adaptive_verification=False
    )
    made = module.RejectionSampler(sampler, config, torch.device("cpu"))
    assert made.use_block_verification is COUPLED
    with patch.object(module, "MAX_CHUNK_BYTES", 5 * WIDE * 4, create=True):
        found = made(logits, batch)
    taken = [line[:n] for line, n in zip(found.sampled_token_ids.tolist(), found.num_sampled.tolist(), strict=True)]
    whole = found.sampled_token_ids
    return bool(
        taken == [plain[:2].tolist(), plain[4:5].tolist(), plain[5:6].tolist()]
        and (whole.shape, whole.dtype, found.num_sampled.dtype) == ((3, STEPS + 1), torch.int64, torch.int32)
    )


def _plain(logits: Any, slots: Any, places: Any, states: Any) -> Any:
    """The call in `Sampler.sample`."""
    import inspect

    from vllm.v1.worker.gpu.sample.gumbel import gumbel_sample

    named = {"is_drafting": False} if "is_drafting" in inspect.signature(gumbel_sample).parameters else {}
    return gumbel_sample(
        logits,
        slots,
        states.temperature.gpu,
        states.seeds.gpu,
        places,
        apply_temperature=False,
        use_fp64=False,
        **named,
    )
