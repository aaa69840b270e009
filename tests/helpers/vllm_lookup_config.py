"""As much of vLLM's configuration as our look-up drafters read."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any


def configuration(limit: int, **more: Any) -> SimpleNamespace:
    """Texts of up to `limit` tokens; `more` goes into the speculative configuration."""
    said = {
        "num_speculative_tokens": 3,
        "prompt_lookup_min": 2,
        "prompt_lookup_max": 3,
        "suffix_decoding_max_spec_factor": 1.0,
        "suffix_decoding_min_token_prob": 0.1,
        "suffix_decoding_max_tree_depth": 24,
        "suffix_decoding_max_cached_requests": 100,
    }
    return SimpleNamespace(
        speculative_config=SimpleNamespace(**{**said, **more}),
        model_config=SimpleNamespace(max_model_len=limit),
        scheduler_config=SimpleNamespace(max_num_seqs=4),
        parallel_config=SimpleNamespace(tensor_parallel_size=1),
    )
