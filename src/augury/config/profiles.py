"""Four starting points, as the guides give them; `augury config explain` shows what each resolves to."""

from __future__ import annotations

from typing import Any, NamedTuple


class ConfigProfile(NamedTuple):
    """A configuration and when to start from it."""

    name: str
    when: str
    config: dict[str, Any]


PROFILES = (
    ConfigProfile(
        "low latency",
        "few requests at a time, prompts that repeat themselves: short lookups, short drafts",
        {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_min": 3, "prompt_lookup_max": 3},
    ),
    ConfigProfile(
        "high throughput",
        "a trained head, and no drafting once many requests keep the target busy",
        {
            "method": "eagle",
            "model": "<EAGLE head for your target>",
            "num_speculative_tokens": 5,
            "disable_by_batch_size": 16,
            "disable_padded_drafter_batch": True,
        },
    ),
    ConfigProfile(
        "balanced",
        "mixed traffic without a head: drafts from past answers, only where they are likely",
        {
            "method": "suffix",
            "num_speculative_tokens": 24,
            "suffix_decoding_max_spec_factor": 0.5,
            "suffix_decoding_min_token_prob": 0.2,
        },
    ),
    ConfigProfile(
        "agentic",
        "agents, code edits, roll-outs: long repeats, long drafts",
        {"method": "suffix", "num_speculative_tokens": 32},
    ),
)
